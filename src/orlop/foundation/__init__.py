"""General tools: time, backoff, logging, metrics, flags, sockets, HTTP. Each module could be a library of its own.

Modules import neither each other (only `runtime` gathers some) nor anything else of Orlop.
What does not belong here: anything about storage, CSI or Kubernetes objects.
"""
