"""What every role stands on: each module here could be a library of its own.

None imports another, and none imports anything else of Orlop.
"""
