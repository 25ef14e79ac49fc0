"""Caches of API objects: informers that list and watch, and listeners.

What does not belong here: decisions about objects, and writes (`client`); queues of names are in `queue/`.
"""
