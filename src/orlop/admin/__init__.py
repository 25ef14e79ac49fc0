"""What an operator asks: one file per thing, used by the command line and the web alike. Prints nothing.

Not here: parsing arguments and printing (cli/).
"""
