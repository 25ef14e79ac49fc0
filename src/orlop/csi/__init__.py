"""Both ends of CSI, for any driver: the interface, a server, a client, and both without a socket between.

Knows nothing of storage and nothing of Kubernetes objects. grpc is imported by `grpc_transport` alone, for calling
drivers; being called needs none of it.
"""
