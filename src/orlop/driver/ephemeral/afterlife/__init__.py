"""Retained folders: the queue of expiry, the reaper that erases them, the rules of eviction.

Belongs here: everything between a burial and the last unlinked file; `retention_rules` decides, `reaper` and
`trash_purge` act. Does not: how a folder is buried (publish_sequence), and the unlinking itself (host/erase).
"""
