"""Operations and questions of an operator, one file for each. The command line and the web use them. Prints nothing.

Not here: parsing arguments and printing (cli/).
"""
