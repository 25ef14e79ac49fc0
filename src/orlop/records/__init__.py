"""The shape of all we persist or show; pure.

Not here: reading and writing them (host/folders, sidecars/), and decisions about them.
"""
