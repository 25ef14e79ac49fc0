"""Orlop gives Kubernetes pods the disks of the machine they run on.

This file imports nothing: a process pays only for what it uses.
"""

__version__ = "0.1.0"
