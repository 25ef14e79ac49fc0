"""Pods and what makes them: what is refused, and what of it may change."""

from __future__ import annotations

from typing import Any

import pytest

from support.kube_rules import CONTAINER, TEMPLATE, WORKLOAD, changed, stored, update, wrong, wrong_change

PATH = "spec.containers[0]"


def pod(**spec: Any) -> list[str]:
    return wrong("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}})


def container(**fields: Any) -> list[str]:
    return pod(containers=[{**CONTAINER, **fields}], volumes=[{"name": "v"}])


PODS = [
    ({"containers": []}, ["spec.containers: Required value"]),
    ({"containers": [CONTAINER, CONTAINER]}, ['spec.containers[1].name: Duplicate value: "c"']),
    ({"initContainers": [CONTAINER]}, ['spec.initContainers[0].name: Duplicate value: "c"']),
    (
        {"restartPolicy": "Maybe"},
        ['spec.restartPolicy: Unsupported value: "Maybe": supported values: "Always", "OnFailure", "Never"'],
    ),
    (
        {"dnsPolicy": "None"},
        ["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
    ),
    (
        {"dnsConfig": {"nameservers": ["nowhere"]}},
        [
            (
                'spec.dnsConfig.nameservers[0]: Invalid value: "nowhere": '
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            )
        ],
    ),
    (
        {"activeDeadlineSeconds": 0},
        ["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
    ),
    (
        {"ephemeralContainers": [CONTAINER]},
        [
            'spec.ephemeralContainers[0].name: Duplicate value: "c"',
            "spec.ephemeralContainers: Forbidden: cannot be set on create",
        ],
    ),
    (
        {"nodeName": "n", "schedulingGates": [{"name": "a/b"}]},
        ["spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared"],
    ),
    ({"volumes": [{"name": "v"}, {"name": "v"}]}, ['spec.volumes[1].name: Duplicate value: "v"']),
    (
        {"volumes": [{"name": "v", "emptyDir": {}, "configMap": {"name": "c"}}]},
        ["spec.volumes[0].configMap: Forbidden: may not specify more than 1 volume type"],
    ),
    (
        {"volumes": [{"name": "v", "persistentVolumeClaim": {}}]},
        ["spec.volumes[0].persistentVolumeClaim.claimName: Required value"],
    ),
    ({"volumes": [{"name": "v", "csi": {}}]}, ["spec.volumes[0].csi.driver: Required value"]),
    (
        {"volumes": [{"name": "v", "hostPath": {"path": "/x", "type": "Odd"}}]},
        [
            (
                'spec.volumes[0].hostPath.type: Unsupported value: "Odd": supported values: "", "BlockDevice", '
                '"CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"'
            )
        ],
    ),
    (
        {"volumes": [{"name": "v", "configMap": {"name": "c", "defaultMode": 512}}]},
        [
            (
                "spec.volumes[0].configMap.defaultMode: Invalid value: 512: "
                "must be a number between 0 and 0777 (octal), both inclusive"
            )
        ],
    ),
    (
        {"volumes": [{"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "../x"}]}}]},
        ["spec.volumes[0].configMap.items[0].path: Invalid value: \"../x\": must not contain '..'"],
    ),
    (
        {"volumes": [{"name": "v", "ephemeral": {}}]},
        ["spec.volumes[0].ephemeral.volumeClaimTemplate: Required value"],
    ),
    (
        {"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {"metadata": {"name": "n"}, "spec": {}}}}]},
        [
            "spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.name: Forbidden: cannot be set",
            (
                "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.accessModes: Required value: "
                "at least 1 access mode is required"
            ),
            "spec.volumes[0].ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value",
        ],
    ),
    (
        {"tolerations": [{"key": "a", "operator": "Exists", "value": "b"}]},
        ["spec.tolerations[0].operator: Invalid value: \"b\": value must be empty when `operator` is 'Exists'"],
    ),
    (
        {"tolerations": [{"key": "a", "tolerationSeconds": 1}]},
        ["spec.tolerations[0].effect: Invalid value: \"\": effect must be 'NoExecute' when `tolerationSeconds` is set"],
    ),
    (
        {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "a/b/c"}]}}},
        None,
    ),
    ({"hostAliases": [{"ip": "x"}]}, None),
    (
        {"securityContext": {"fsGroup": -1}},
        ["spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive"],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), PODS, ids=[str(fields)[:70] for fields, _ in PODS])
def test_a_wrong_pod_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    found = pod(**fields)

    assert found == sentences if sentences is not None else len(found) == 1


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
    assert container(**fields) == sentences


def test_a_claim_is_used_as_a_device():
    claim = {"name": "d", "persistentVolumeClaim": {"claimName": "c"}}

    assert (
        pod(volumes=[claim], containers=[{**CONTAINER, "volumeDevices": [{"name": "d", "devicePath": "/dev/x"}]}]) == []
    )


def a_pod(**spec: Any) -> dict[str, Any]:
    return stored("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}})


def test_of_a_pod_the_image_the_deadline_and_more_tolerations_may_change():
    old = a_pod(activeDeadlineSeconds=10)
    more = [*old["spec"]["tolerations"], {"key": "a", "operator": "Exists"}]
    change = {
        "containers": [{**old["spec"]["containers"][0], "image": "busybox:2"}],
        "activeDeadlineSeconds": 5,
        "tolerations": more,
    }

    made = update(old, changed(old, spec=change))

    assert made.causes == ()
    assert made.object["metadata"]["generation"] == 2


def test_nothing_else_of_a_pod_may_change():
    (sentence,) = wrong_change(a_pod(), spec={"nodeName": "n2"})

    assert sentence.startswith(
        "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
        "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
        "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)\n"
    )
    assert '+  "nodeName": "n2"' in sentence


CHANGES = [
    (
        {"containers": [CONTAINER, {"name": "d", "image": "x"}]},
        "spec.containers: Forbidden: pod updates may not add or remove containers",
    ),
    (
        {"activeDeadlineSeconds": 20},
        "spec.activeDeadlineSeconds: Invalid value: 20: must be less than or equal to previous value",
    ),
    (
        {"activeDeadlineSeconds": None},
        "spec.activeDeadlineSeconds: Invalid value: null: must not update from a positive integer to nil value",
    ),
    (
        {"tolerations": [{"operator": "Exists"}]},
        "spec.tolerations: Forbidden: existing toleration can not be modified except its tolerationSeconds",
    ),
    (
        {"schedulingGates": [{"name": "a/b"}]},
        "spec.schedulingGates[0].name: Forbidden: only deletion is allowed, but found new scheduling gate 'a/b'",
    ),
]


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=[sentence for _, sentence in CHANGES])
def test_a_forbidden_change_of_a_pod_is_named(change, sentence):
    assert sentence in wrong_change(a_pod(activeDeadlineSeconds=10), spec=change)


def test_a_gated_pod_loses_gates_and_gains_restrictions():
    old = a_pod(schedulingGates=[{"name": "a/b"}], nodeSelector={"a": "b"})

    assert wrong_change(old, spec={"schedulingGates": None, "nodeSelector": {"a": "b", "c": "d"}}) == []
    assert len(wrong_change(old, spec={"nodeSelector": {"c": "d"}})) == 1


def test_the_priority_of_a_pod_is_kept_for_clients_that_leave_it_out():
    old = a_pod()

    made = update(old, changed(old, spec={"priority": None, "preemptionPolicy": None}))

    assert made.causes == ()
    assert made.object == old


def test_the_quality_of_a_pod_never_changes():
    assert wrong_change(a_pod(), "status", status={"qosClass": "Guaranteed"}) == [
        'status.qosClass: Invalid value: "Guaranteed": field is immutable'
    ]


def test_the_quality_of_a_pod_is_kept_for_clients_that_leave_it_out():
    old = a_pod()

    made = update(old, {**old, "status": {"phase": "Running"}}, "status")

    assert made.object["status"] == {"phase": "Running", "qosClass": "BestEffort"}


WORKLOADS = [
    ("Deployment", {"selector": None}, ["spec.selector: Required value"]),
    (
        "Deployment",
        {"selector": {}},
        ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
    ),
    (
        "Deployment",
        {"selector": {"matchLabels": {"app": "b"}}},
        ['spec.template.metadata.labels: Invalid value: {"app":"a"}: `selector` does not match template `labels`'],
    ),
    ("Deployment", {"template": {"metadata": TEMPLATE["metadata"]}}, ["spec.template.spec.containers: Required value"]),
    ("Deployment", {"replicas": -1}, ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]),
    (
        "Deployment",
        {"strategy": {"type": "Recreate", "rollingUpdate": {}}},
        ["spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'"],
    ),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxUnavailable": 0, "maxSurge": "0%"}}},
        ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
    ),
    (
        "Deployment",
        {"strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}},
        ['spec.strategy.rollingUpdate.maxUnavailable: Invalid value: "101%": must not be greater than 100%'],
    ),
    (
        "Deployment",
        {"minReadySeconds": 600},
        ["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"],
    ),
    (
        "Deployment",
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "restartPolicy": "Never"}}},
        ['spec.template.spec.restartPolicy: Unsupported value: "Never": supported values: "Always"'],
    ),
    (
        "Deployment",
        {"template": {**TEMPLATE, "spec": {"containers": [{"name": "c"}]}}},
        ["spec.template.spec.containers[0].image: Required value"],
    ),
    (
        "DaemonSet",
        {"template": {**TEMPLATE, "spec": {**TEMPLATE["spec"], "activeDeadlineSeconds": 1}}},
        ["spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported"],
    ),
    (
        "DaemonSet",
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": 0}}},
        ["spec.updateStrategy.rollingUpdate.maxUnavailable: Required value: cannot be 0 when maxSurge is 0"],
    ),
    (
        "StatefulSet",
        {"podManagementPolicy": "Odd"},
        ["spec.podManagementPolicy: Invalid value: \"Odd\": must be 'OrderedReady' or 'Parallel'"],
    ),
    (
        "StatefulSet",
        {"volumeClaimTemplates": [{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]},
        ["spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"],
    ),
    ("ReplicaSet", {"selector": {}}, ["spec.selector: Invalid value: {}: empty selector is invalid for deployment"]),
]


@pytest.mark.parametrize(("kind", "fields", "sentences"), WORKLOADS, ids=[str(s)[:90] for _, _, s in WORKLOADS])
def test_a_wrong_workload_is_refused_with_the_paths_and_words_of_kubernetes(kind, fields, sentences):
    spec = {key: value for key, value in {**WORKLOAD, **fields}.items() if value is not None}

    assert wrong("apps/v1", kind, {"spec": spec}) == sentences


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"])
def test_what_a_workload_selects_is_fixed(kind: str):
    old = stored("apps/v1", kind, {"spec": WORKLOAD})
    other = {"metadata": {"labels": {"app": "a", "b": "c"}}, "spec": TEMPLATE["spec"]}

    sentences = wrong_change(old, spec={"selector": {"matchLabels": {"b": "c"}}, "template": other})

    assert sentences == ['spec.selector: Invalid value: {"matchLabels":{"b":"c"}}: field is immutable']


def test_a_mount_of_a_claim_template_is_known():
    template = {
        **TEMPLATE,
        "spec": {"containers": [{**CONTAINER, "volumeMounts": [{"name": "data", "mountPath": "/d"}]}]},
    }
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1"}}},
    }

    assert (
        wrong("apps/v1", "StatefulSet", {"spec": {**WORKLOAD, "template": template, "volumeClaimTemplates": [claim]}})
        == []
    )


def test_a_workloads_counts_make_sense():
    old = stored("apps/v1", "Deployment", {"spec": WORKLOAD})

    assert wrong_change(old, "status", status={"replicas": 1, "readyReplicas": 2, "updatedReplicas": -1}) == [
        "status.updatedReplicas: Invalid value: -1: must be greater than or equal to 0",
        "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
    ]
