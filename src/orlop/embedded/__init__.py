"""Stands in for Kubernetes where there is none: the API server, the controllers and the kubelet of one machine."""
