"""gRPC over HTTP/2, written by hand (docs/decisions/0004). Frozen: nothing else of CSI belongs here.

The seam is `csi/transport`; the rest of Orlop uses `csi/client` and `csi/server`.
"""
