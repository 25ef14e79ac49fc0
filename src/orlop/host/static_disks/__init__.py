"""Disks that an admin mounted or linked in a folder: what the entries are, who uses them, how they are wiped.

Belongs here: everything static volumes ask of the kernel (`static_host` is the seam). Does not: which entry is offered,
and when one is wiped (`static_pv/`).
"""
