"""Periodic checks of a node's folders: orphans, quotas, sizes, health, and takeover of another driver's folders.

Belongs here: what keeps folders and book in order with nobody asking. Does not: expiry and erasing (afterlife).
"""
