"""The controllers that stand beside any CSI driver. They know nothing of our own driver, and not of each other."""
