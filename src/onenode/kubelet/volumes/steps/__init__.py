"""What one operation does to one volume, in kubelet's order: stage, publish, map, expand, and their undoing.

mount_work and unmount_work for file systems, block_work for raw block volumes, expansion_work; around them
mount_preconditions, driver_calls, fs_group, pod_tokens, subpaths; mount_folders, block_folders and volume_data for what
lies on disk; csi_request_rules, outcome_rules, expansion_rules and event_texts decide and word (pure).

Does not belong here: which operation comes next, which `reconcile_rules` in the folder above decides.
"""
