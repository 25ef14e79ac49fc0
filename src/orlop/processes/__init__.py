"""One file per process seen in `ps`, which builds the process from its settings.

Only this folder may import everything. It makes no decisions: no `if` beyond settings.
"""
