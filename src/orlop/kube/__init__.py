"""A toolkit for controllers of any Kubernetes API server: client, kinds, patches, leases; and rooms for the rest.

`http/` carries requests, `config/` finds the server and credentials, `cache/` holds informers, `queue/` work queues,
`events/` records Events. Objects stay plain dicts as they are on the wire, so that unknown fields survive.
What does not belong here: anything about storage, and our own kinds (`records/`).
"""
