"""Static local volumes: disks that an admin mounted or linked in a folder, offered as PersistentVolumes.

A worker on each node lists the disks and wipes them; one master makes and deletes the PersistentVolumes. They meet in
the ProvisionerStatus of the node and read the same configuration. Not here: what touches the kernel (`host/`), the
shape of the objects (`records/`).
"""
