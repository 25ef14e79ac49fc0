"""Registers a CSI driver, any driver, with the kubelet of its node, and again whenever the driver changed.

Belongs here: the registration socket, when to create it again, and the metadata of the Node object. Does not: reading
flags and connecting to the driver (`processes.registrar`).

Not here: what kubelet does with a registration (onenode/kubelet/node, or a real kubelet).
"""
