"""The controllers of Kubernetes' control plane that volumes need, as clients of an API server like any other.

They must not reach around it into its store: what works here works against any API server.
"""
