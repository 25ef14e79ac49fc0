"""Pods on this machine: each container is a process here, with a root of its own.

`*_rules` decide what a pod's state means and what comes next; `pod_worker` lives one pod's life; `pod_manager` has one
worker for each pod of the node; `containers` is the seam to the machine, and `machine_containers` the real one.
Volumes belong to the volume manager: here one waits for them and lets them go.
"""
