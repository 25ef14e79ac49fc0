"""Kubernetes' protobuf messages: our .proto files, and the table that `make generate` makes from them.

Nothing here is written by hand but the .proto files and this file; no behaviour may live here.
"""
