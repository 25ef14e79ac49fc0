"""Orlop's own CSI driver: its services, and what stands behind them.

Knows nothing of the sidecars, and they nothing of it: they meet on the CSI socket and through the API server.
"""
