"""What tests need and users of Orlop may use in theirs: virtual time and small models of the world.

Nothing in a running process imports this folder, except `processes/` for the commands made for trying things out.
"""
