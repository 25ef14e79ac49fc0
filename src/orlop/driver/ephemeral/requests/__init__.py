"""Requests of an operator to a node over its admin socket: list, show, read, restore, keep, erase.

Belongs here: the socket and its handlers. Does not: the shape of the messages (records) and the client (admin).
"""
