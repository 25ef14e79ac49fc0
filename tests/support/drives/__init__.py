"""Drives and volumes for tests of the controller."""
