"""Worlds of static volumes: a model of a node with disks, of the controllers of Kubernetes, and of claims and pods."""
