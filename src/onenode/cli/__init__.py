"""The verbs for an `orlop up`: `down` and `kubectl`. One file per verb: parse, call, print.

Not here: starting it, which is a process (processes/), and verbs that work in a cluster too (orlop/cli).
"""
