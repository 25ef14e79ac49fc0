"""What an operator asks about static volumes: their list, and how disks come back or are given up.

Not here: what the master decides by itself (`static_pv/`), and the words of the command line (`cli/`).
"""
