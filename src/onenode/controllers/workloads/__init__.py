"""Deployments, ReplicaSets and StatefulSets: make, replace and count pods, replica sets, claims and revisions.

The kubelet runs the pods, not this package. DaemonSets, Jobs and ReplicationControllers are only stored.
"""
