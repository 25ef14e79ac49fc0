"""The verbs for an `orlop up`: `down` and `kubectl`. One file per verb: parse, call, print."""
