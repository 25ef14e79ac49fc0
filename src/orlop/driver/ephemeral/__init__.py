"""Scratch folders that pods ask for in their own spec, and the afterlife of what they leave behind."""
