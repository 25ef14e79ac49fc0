"""The volumes of CSI drivers in this node's pods: what should be mounted, what is, and which operation comes next.

Rules and values (pure): volume_values, volume_paths, mount_progress, desired_volumes_rules (pods and claims → volumes),
reconcile_rules (→ the next operations, and when one that failed is retried).
Shells: volume_manager (one loop) around desired_state, actual_state, operations, reconstruction (after a restart) and
leftovers (empty folders); volume_stats; volume_seams is what they are built with.

Does not belong here: what one operation does to a volume (steps/), volumes of Kubernetes' own kinds (plain_volumes).
Nothing here removes a file of a tenant: folders go by rmdir alone, and only where nothing is mounted.
"""
