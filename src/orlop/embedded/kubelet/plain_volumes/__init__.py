"""Volumes of Kubernetes' own kinds: emptyDir, configMap, secret, downwardAPI, projected and hostPath.

Rules (pure): plain_volumes_rules (a pod → its volumes), payload_rules (what they refer to → files),
host_path_rules, memory_size_rules. Shells: plain_volumes (for whoever runs pods), pod_volumes_worker (one pod's),
volume_set_up, references, removal.

Secrets are never on a disk and in no message. A tenant's files go by the eraser alone.
"""
