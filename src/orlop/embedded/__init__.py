"""Stands in for Kubernetes where there is none: an API server, the controllers of volumes, and a kubelet."""
