"""What every kind has in common: schemas, decoding, defaults, validation, names, metadata, field errors. Pure.

Not here: what only one kind demands (kinds/).
"""
