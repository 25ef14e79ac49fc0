"""Mounting and the mount table of all namespaces we can see."""
