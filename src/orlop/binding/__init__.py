"""Decisions about claims, volumes and nodes that the provisioner, `explain` and onenode's controllers share.

Belongs here: pure `*_rules` modules over plain Kubernetes objects. Does not: anything that reads, writes or waits, and
rules that only one role needs.
"""
