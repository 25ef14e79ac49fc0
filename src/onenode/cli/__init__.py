"""The verbs that only make sense for `orlop up`: `down` and `kubectl`. One file per verb: parse, call, print."""
