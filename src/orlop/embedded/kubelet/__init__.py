"""What a node does for its pods where there is no kubelet: a client of an API server and of CSI drivers."""
