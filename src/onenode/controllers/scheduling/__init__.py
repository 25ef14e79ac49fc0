"""What the scheduler knows and decides besides its loop: pods on nodes, volumes, capacity, limits, waits.

Must not write to the API server: `scheduler` does. What `explain` and the provisioner decide too is in `orlop.binding`.
"""
