"""What the API server does without a request: first objects, namespaces, expiry of events."""
