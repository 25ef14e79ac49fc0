"""The only folder that touches the kernel: mounts, paths that cannot be led astray, folders and their records, disks.

Functions block and are plain: the caller runs them in threads. They take the descriptor of a folder and names below
it, never a path that is walked again as text. Kubernetes and CSI are unknown here.
"""
