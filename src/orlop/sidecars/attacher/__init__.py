"""Attaches and detaches the volumes of any CSI driver that wants it, by its Controller service."""
