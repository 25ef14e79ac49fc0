"""Orlop's own CSI driver: its services and their implementation.

The driver and the sidecars do not import each other. They communicate over the CSI socket and the API server.
"""
