"""The commands for people: one file per verb. Each parses, calls and prints.

Not here: reading and deciding, which admin/ does for the command line and the web alike.
"""
