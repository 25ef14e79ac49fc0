"""Erase folder trees: `erase_folder` is the entry, `unlink_walk` the walk that unlinks, `obstacles` what it removes.

Belongs here: everything that unlinks a tenant's files. Does not: which folder goes, and when (the driver's afterlife).
"""
