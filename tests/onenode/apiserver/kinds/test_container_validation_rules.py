"""Containers of pods: what is refused, in Kubernetes' words."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.kube_rules import CONTAINER, wrong

PATH = "spec.containers[0]"
MOUNT = f"{PATH}.volumeMounts[0]"


def pod(**spec: Any) -> list[str]:
    return wrong("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}})


def container(**fields: Any) -> list[str]:
    return pod(containers=[{**CONTAINER, **fields}], volumes=[{"name": "v"}])


CONTAINERS = [
    ({"name": ""}, [f"{PATH}.name: Required value"]),
    ({"image": ""}, [f"{PATH}.image: Required value"]),
    (
        {"imagePullPolicy": "Maybe"},
        [f'{PATH}.imagePullPolicy: Unsupported value: "Maybe": supported values: "Always", "IfNotPresent", "Never"'],
    ),
    ({"ports": [{}]}, [f"{PATH}.ports[0].containerPort: Required value"]),
    (
        {"ports": [{"containerPort": 70000}]},
        [f"{PATH}.ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive"],
    ),
    (
        {"ports": [{"containerPort": 1, "protocol": "ICMP"}]},
        [f'{PATH}.ports[0].protocol: Unsupported value: "ICMP": supported values: "SCTP", "TCP", "UDP"'],
    ),
    (
        {"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]},
        [f'{PATH}.ports[1].name: Duplicate value: "a"'],
    ),
    (
        {"ports": [{"containerPort": 1, "hostPort": 9}, {"containerPort": 2, "hostPort": 9}]},
        [f'{PATH}.ports[1].hostPort: Duplicate value: "TCP//9"'],
    ),
    ({"env": [{"value": "x"}]}, [f"{PATH}.env[0].name: Required value"]),
    (
        {"env": [{"name": "A", "valueFrom": {}}]},
        [
            (
                f'{PATH}.env[0].valueFrom: Invalid value: "": must specify one of: '
                "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
            )
        ],
    ),
    (
        {"env": [{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]},
        [f'{PATH}.env[0].valueFrom: Invalid value: "": may not be specified when `value` is not empty'],
    ),
    ({"volumeMounts": [{"name": "w", "mountPath": "/x"}]}, [f'{PATH}.volumeMounts[0].name: Not found: "w"']),
    (
        {"volumeMounts": [{"name": "v", "mountPath": "/x"}, {"name": "v", "mountPath": "/x"}]},
        [f'{PATH}.volumeMounts[1].mountPath: Invalid value: "/x": must be unique'],
    ),
    (
        {
            "env": [
                {
                    "name": "A",
                    "valueFrom": {"fieldRef": {"fieldPath": "a.b"}, "secretKeyRef": {"name": "s", "key": "k"}},
                }
            ]
        },
        None,
    ),
    (
        {"env": [{"name": "A", "valueFrom": {"fieldRef": {}}}]},
        [f"{PATH}.env[0].valueFrom.fieldRef.fieldPath: Required value"],
    ),
    ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['x']"}}}]}, []),
    (
        {"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c"}}}]},
        [f"{PATH}.env[0].valueFrom.configMapKeyRef.key: Required value"],
    ),
    (
        {"readinessProbe": {"tcpSocket": {"port": 1}, "terminationGracePeriodSeconds": 5}},
        [
            (
                f"{PATH}.readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: "
                "must not be set for readinessProbes"
            )
        ],
    ),
    (
        {"livenessProbe": {"grpc": {"port": 0}, "terminationGracePeriodSeconds": 0}},
        [
            f"{PATH}.livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            f"{PATH}.livenessProbe.grpc.port: Invalid value: 0: must be between 1 and 65535, inclusive",
        ],
    ),
    ({"livenessProbe": {"httpGet": {"port": "1", "scheme": "FTP", "httpHeaders": [{"name": "a b"}]}}}, None),
    (
        {"lifecycle": {"preStop": {"exec": {}, "sleep": {"seconds": 1}}}},
        [
            f"{PATH}.lifecycle.preStop.sleep: Forbidden: may not specify more than 1 handler type",
            f"{PATH}.lifecycle.preStop.exec.command: Required value",
        ],
    ),
    (
        {"securityContext": {"privileged": True, "allowPrivilegeEscalation": False}},
        [
            (
                f'{PATH}.securityContext: Invalid value: {{"allowPrivilegeEscalation":false,"privileged":true}}: '
                "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
            )
        ],
    ),
    (
        {
            "volumeMounts": [{"name": "v", "mountPath": "/x", "subPath": "/a", "subPathExpr": "b/.."}],
            "volumeDevices": [{"name": "v", "devicePath": "/x"}],
        },
        [
            f'{PATH}.volumeMounts[0].name: Invalid value: "v": must not already exist in volumeDevices',
            f'{PATH}.volumeMounts[0].mountPath: Invalid value: "/x": must not already exist as a path in volumeDevices',
            f'{MOUNT}.subPathExpr: Invalid value: "b/..": subPathExpr and subPath are mutually exclusive',
            f'{PATH}.volumeMounts.subPath: Invalid value: "/a": must be a relative path',
            f"{PATH}.volumeMounts.subPathExpr: Invalid value: \"b/..\": must not contain '..'",
            (
                f'{PATH}.volumeDevices[0].name: Invalid value: "v": '
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            ),
        ],
    ),
    (
        {"volumeMounts": [{"name": "v", "mountPath": "/x", "recursiveReadOnly": "Enabled"}]},
        [f"{PATH}.volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true"],
    ),
    (
        {"volumeDevices": [{"name": "w", "devicePath": "/a"}, {"name": "w", "devicePath": "/a"}]},
        [
            f'{PATH}.volumeDevices[0].name: Not found: "w"',
            f'{PATH}.volumeDevices[1].name: Not found: "w"',
            f'{PATH}.volumeDevices[1].name: Invalid value: "w": must be unique',
            f'{PATH}.volumeDevices[1].devicePath: Invalid value: "/a": must be unique',
        ],
    ),
    (
        {"volumeDevices": [{"name": "w", "devicePath": "/a/../b"}]},
        [
            f'{PATH}.volumeDevices[0].name: Not found: "w"',
            f"{PATH}.volumeDevices[0].devicePath: Invalid value: \"/a/../b\": can not contain backsteps ('..')",
        ],
    ),
    ({"volumeMounts": [{"name": "v"}]}, [f"{PATH}.volumeMounts[0].mountPath: Required value"]),
    (
        {"volumeMounts": [{"name": "v", "mountPath": "/x", "mountPropagation": "Bidirectional"}]},
        [
            (
                f"{PATH}.volumeMounts.mountPropagation: Forbidden: "
                "Bidirectional mount propagation is available only to privileged containers"
            )
        ],
    ),
    (
        {"volumeDevices": [{"name": "v", "devicePath": "/dev/x"}]},
        [
            (
                f'{PATH}.volumeDevices[0].name: Invalid value: "v": '
                "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
            )
        ],
    ),
    ({"livenessProbe": {}}, [f"{PATH}.livenessProbe: Required value: must specify a handler type"]),
    (
        {"livenessProbe": {"exec": {"command": ["x"]}, "successThreshold": 2}},
        [f"{PATH}.livenessProbe.successThreshold: Invalid value: 2: must be 1"],
    ),
    (
        {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}},
        [f'{PATH}.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1'],
    ),
    (
        {"resources": {"limits": {"disks": "1"}}},
        [
            f'{PATH}.resources.{kind}[disks]: Invalid value: "disks": {why}'
            for kind in ("limits", "requests")
            for why in (
                "must be a standard resource type or fully qualified",
                "must be a standard resource for containers",
            )
        ],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), CONTAINERS, ids=[str(fields)[:70] for fields, _ in CONTAINERS])
def test_a_wrong_container_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    found = container(**fields)

    assert found == sentences if sentences is not None else len(found) >= 2


def test_a_claim_is_used_as_a_device():
    claim = {"name": "d", "persistentVolumeClaim": {"claimName": "c"}}

    assert (
        pod(volumes=[claim], containers=[{**CONTAINER, "volumeDevices": [{"name": "d", "devicePath": "/dev/x"}]}]) == []
    )
