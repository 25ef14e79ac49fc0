"""What a kubelet answers on its own socket: logs, commands inside of containers, statistics, its pods, its health.

Only root connects to it, and nearly always that is the API server, which has decided who may ask for what.
"""
