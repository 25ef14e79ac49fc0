"""Block devices: find them, read what they hold, attach loop devices, and make file systems in image files.

Not here: mounts (mounts/), and what drives and volumes are (drives/).
"""
