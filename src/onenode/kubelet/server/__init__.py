"""What a kubelet answers on its own socket: logs, commands inside of containers, statistics, its pods, its health.

Belongs here: HTTP, WebSocket channels and the form of answers. Does not: running commands and reading logs, which
`kubelet/pods` does. Only root connects, and nearly always that is the API server, which has decided who may ask for
what.
"""
