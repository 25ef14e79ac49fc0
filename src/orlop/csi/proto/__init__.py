"""The CSI and kubelet registration interfaces: our .proto files, and the modules that `make generate` makes from them.

Nothing here is written by hand but the .proto files and this file; no behaviour may live here.
"""
