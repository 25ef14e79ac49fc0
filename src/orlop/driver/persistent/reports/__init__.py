"""What the node writes to the API server: devices, drives, the status of its volumes, and the requests it carries out.

The reports follow the state of the node; nothing on the node waits for them. Not here: the care of drives (upkeep/),
and what the controller writes (one folder up).
"""
