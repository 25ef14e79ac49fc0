"""Pods on this machine: each container is a process here, with a root of its own.

`*_rules` decide what a pod's state means and what comes next; `pod_worker` runs one pod from its start to its end;
`pod_manager` has one worker for each pod of the node; `container_runtime` is the seam to the machine, and
`linux_container_runtime` the real one; `pod_seams` has the seam to volumes, and the settings of the node.
Does not belong here: volumes (one waits for them and lets them go), and how a process is started (onenode/containers).
"""
