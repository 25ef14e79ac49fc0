"""What kubelet does on a node, as far as volumes need it: a client of an API server and of CSI drivers like any other.

It must not reach around the API server into its store, and knows no driver by name.
"""
