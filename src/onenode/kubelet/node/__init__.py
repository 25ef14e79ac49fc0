"""The node itself: its Node, Lease and CSINode, the plugins that register with it, and the wiring of a whole kubelet.

Belongs here: what a kubelet does without any pod, and `kubelet_wiring` and `node_wiring`, which build one
from its parts. Does not: volumes, pods and the HTTP server, which have folders of their own.
"""
