"""The folders of a working directory: records, quotas, reading, copying, restoring.

Belongs here: what is done to or read from a folder by its descriptor. Does not: mounts, erasing, what a record means.
"""
