"""What every kind has in common: schemas, decoding, defaults, validation, names, metadata, field errors. Pure."""
