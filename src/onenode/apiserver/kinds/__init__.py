"""Rules of single kinds: one entry for each in `kind_rules`, one file for each group of kinds. Pure.

Not here: what all kinds have in common (schema/), and acting on objects (verbs/).
"""
