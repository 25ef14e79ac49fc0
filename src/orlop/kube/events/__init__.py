"""Kubernetes Events: recorded without blocking, counted, written in both API forms.

What does not belong here: the texts of events, which each controller chooses.
"""
