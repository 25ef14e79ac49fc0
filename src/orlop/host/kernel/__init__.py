"""System calls and what is made of them directly: confined paths, processes, inotify, I/O pressure, disk usage.

Not here: what is done with them to folders (folders/), mounts (mounts/) and trees to erase (erase/).
"""
