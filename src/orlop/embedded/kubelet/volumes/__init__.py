"""The volumes of this node's pods: what should be mounted, what is, and the steps from one to the other.

Values and rules (pure): volume_values, volume_paths, volume_handles, volume_data; desired_volumes_rules (pods and
claims → volumes), reconcile_rules (→ the next operations), csi_request_rules (→ what drivers are asked), outcome_rules
(→ what is known after an answer), operation_backoff_rules, fs_group_rules, node_affinity_rules, expansion_rules,
event_texts.
Shells: volume_manager (one loop), around desired_state, actual_state, mount_work, unmount_work, reconstruction; for raw
block volumes block_map_work and block_unmap_work.

Nothing here removes a file of a tenant: folders go by rmdir alone, and only where nothing is mounted.
"""
