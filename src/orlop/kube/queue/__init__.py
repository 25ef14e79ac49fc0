"""Queues of names, and the loop that reconciles them.

What does not belong here: objects (`cache/`), requests to the API server (`client`), and what a reconciler decides.
"""
