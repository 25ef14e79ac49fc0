"""What a person types: one file per verb. Each parses, calls and prints.

Not here: finding anything out, which admin/ does for the command line and the web alike.
"""
