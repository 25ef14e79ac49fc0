"""The upkeep of a node's drives: find, mount, open, probe, make and remove them, and erase what was deleted.

Everything here works while the API server is away. Not here: the reports to it (reports/), the CSI calls of volumes,
and the choice of a drive for a volume (one folder up).
"""
