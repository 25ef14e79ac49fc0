"""Both ends of CSI, for any driver: messages, errors, a server, a client, and a transport within one process.

`grpc/` holds gRPC over HTTP/2, written by hand: no grpcio anywhere. `proto/` is generated from the CSI specification.
What does not belong here: anything about storage or Kubernetes objects, and the services of our own driver (`driver/`).
"""
