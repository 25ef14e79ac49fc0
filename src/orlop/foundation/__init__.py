"""Tools that know nothing of storage or Kubernetes objects: each module here could be a library of its own.

They import neither each other nor anything else of Orlop; what two of them need is handed in by their users.
"""
