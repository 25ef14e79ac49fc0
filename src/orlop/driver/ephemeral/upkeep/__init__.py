"""Periodic checks of a node's folders: orphans, quotas, sizes, health, and takeover of another driver's folders.

Belongs here: checks that run without a request. Does not: expiry and erasing (afterlife).
"""
