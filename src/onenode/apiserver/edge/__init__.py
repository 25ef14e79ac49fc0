"""The network side of the API server: sockets, TLS, HTTP/1.1, authentication, paths that are not resources.

Does not know kinds or verbs; those are in `requests` and `verbs`.
"""
