"""A client toolkit for controllers, for any Kubernetes API server: what every role speaks to Kubernetes with.

Knows nothing of storage, and nothing of our own kinds. Objects stay plain dicts as they are on the wire, so that fields
nobody here has heard of survive. HTTP is spoken by `transport` alone, so that it can be exchanged.
"""
