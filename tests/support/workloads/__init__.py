"""Clusters on virtual time for the garbage collector and the controllers of workloads, with a kubelet that plays."""
