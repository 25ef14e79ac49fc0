"""Containers as processes of this machine: their root, their command, their log.

Belongs here: what needs fork, exec, namespaces or seccomp. Does not: when a container runs (kubelet/pods decides that).
"""
