"""Stands in for Kubernetes where there is none: the API server, and the parts of its control plane that volumes need.

Nothing here knows Orlop's own driver: whatever works here works with a real cluster in its place.
"""
