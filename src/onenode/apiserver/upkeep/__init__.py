"""What the API server does without a request: first objects, namespaces, expiry of events.

Not here: controllers, which are clients of the API server (onenode/controllers).
"""
