"""Registers a CSI driver, any driver, with the kubelet of its node, and again whenever the driver changed.

Belongs here: the registration socket, when to create it again, and what is written to the Node object. Reading flags
and connecting to the driver belong to `processes.registrar`.

Not here: what kubelet does with a registration (onenode/kubelet/node, or a real kubelet).
"""
