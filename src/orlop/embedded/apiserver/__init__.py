"""An API server for one machine: what its clients see is what Kubernetes would show them.

It must know nothing of the controllers and the kubelet beside it: they are clients like any other.
"""
