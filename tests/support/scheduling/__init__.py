"""Clusters on virtual time for the scheduler, and a search over plain objects."""
