"""The Kubernetes side of CSI for one machine: what stands in for a cluster where there is none.

Knows nothing of Orlop's driver and sidecars: they meet through the API server, as they do in a cluster.
"""
