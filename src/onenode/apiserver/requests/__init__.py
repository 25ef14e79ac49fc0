"""From the bytes of a request to what it asks for: paths, options, bodies in JSON and protobuf.

Nothing here reads or writes the store.
"""
