"""One file per process seen in `ps`: builds it from its settings. The only folder that may import everything.

Holds no decisions: no `if` beyond settings.
"""
