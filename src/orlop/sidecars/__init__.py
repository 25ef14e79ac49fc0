"""The controllers that run beside any CSI driver. They do not depend on our own driver, nor on each other."""
