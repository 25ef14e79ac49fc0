"""Tools for tests, ours and those of users of Orlop: virtual time and small models of the world.

Nothing in a running process imports this folder, except `processes/` for the commands made for trying things out.
"""
