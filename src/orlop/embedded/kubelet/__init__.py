"""The node's agent, where there is no kubelet: a client of an API server and of CSI drivers, like the real one."""
