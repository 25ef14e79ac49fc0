"""Rules of single kinds: one entry for each in `kind_rules`, one file for each group of kinds. Pure."""
