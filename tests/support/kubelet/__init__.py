"""Kubelets, whole and in parts, on virtual time and on this machine."""
