"""API servers for tests, their objects, their stores and models."""
