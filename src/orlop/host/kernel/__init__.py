"""System calls and what is made of them directly: confined paths, processes, inotify, I/O pressure, disk usage."""
