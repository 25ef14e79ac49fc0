"""The ephemeral half of the driver: scratch folders that pods request in their own spec.

At the top: the path of a publish and an unpublish. A call goes from `node_service` (the CSI methods) through
`publish_request_rules` (what a request may ask for) and `locked_folders` (one call at a time) to `publish_sequence`
(the order of effects). `folder_index` is what is known in memory: folders, and the project numbers in use. In the
folders: `afterlife` (retention and erasure), `upkeep` (periodic checks) and `requests` (`orlop afterlife`).

Not here: system calls (host/), and the wiring of a process (processes/ephemeral_wiring).
"""
