"""Kernels, file systems, block devices and trees for tests that really mount."""
