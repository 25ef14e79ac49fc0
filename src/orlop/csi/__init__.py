"""Both ends of CSI, for any driver: the interface, a server, a client, and both without a socket between.

Knows nothing of storage and nothing of Kubernetes objects. gRPC is spoken by hand on both ends: no grpc here.
"""
