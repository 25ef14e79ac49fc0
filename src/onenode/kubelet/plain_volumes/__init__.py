"""Volumes of Kubernetes' own kinds: emptyDir, configMap, secret, downwardAPI, projected and hostPath.

Rules (pure): plain_volumes_rules (a pod → its volumes, their places, owners and sizes), payload_rules (what they refer
to → files). Shells: plain_volumes (all pods'), plain_volumes_worker (one pod's), plain_volume_work (one volume's),
references (reads ConfigMaps, Secrets and tokens).

Does not belong here: anything of a CSI driver. Secrets are never on a disk and in no message. A tenant's files go by
the eraser alone.
"""
