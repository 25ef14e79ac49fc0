"""Block devices: loop devices over image files.

Not here: file systems on them (mounts/), and what drives and volumes are.
"""
