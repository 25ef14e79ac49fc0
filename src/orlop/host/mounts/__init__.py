"""Mounting, kubelet's directory with the targets of mounts, and the mount table of all namespaces we can see.

Not here: where a volume is mounted and when (driver/), and loop devices (block/).
"""
