"""The embedded API server: what a client of Kubernetes sees, on one machine."""
