"""Nodes with scratch folders, in memory and on this kernel, and their histories."""
