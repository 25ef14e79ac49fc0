"""Pods and what makes them: what is refused, and what of it may change."""

from __future__ import annotations

from typing import Any

import pytest

from support.api.kube_rules import CONTAINER, changed, stored, update, wrong, wrong_change

PATH = "spec.containers[0]"
ANY_ID = "must be between 0 and 2147483647, inclusive"


def pod(**spec: Any) -> list[str]:
    return wrong("v1", "Pod", {"spec": {"containers": [CONTAINER], **spec}})


ODD_PROJECTIONS = [
    {"secret": {}, "configMap": {"name": "c"}},
    {"serviceAccountToken": {"expirationSeconds": 5000000000}},
]
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
    ({"hostAliases": [{"ip": "::1", "hostnames": ["A_"]}]}, None),
    ({"readinessGates": [{"conditionType": "a/b/c"}]}, None),
    ({"serviceAccountName": "A_"}, None),
    ({"hostname": "a.b"}, ['spec.hostname: Invalid value: "a.b": must not contain dots']),
    (
        {"dnsPolicy": "None", "dnsConfig": {}},
        [
            (
                "spec.dnsConfig.nameservers: Required value: "
                "must provide at least one DNS nameserver when `dnsPolicy` is None"
            )
        ],
    ),
    (
        {"hostNetwork": True, "containers": [{**CONTAINER, "ports": [{"containerPort": 1, "hostPort": 2}]}]},
        [f"{PATH}.ports[0].hostPort: Invalid value: 2: must match `containerPort` when `hostNetwork` is true"],
    ),
    (
        {"tolerations": [{"key": "a", "operator": "Is"}]},
        ['spec.tolerations[0].operator: Unsupported value: "Is": supported values: "Equal", "Exists"'],
    ),
    (
        {"tolerations": [{"value": "b"}]},
        [
            (
                'spec.tolerations[0].operator: Invalid value: "": operator must be Exists when `key` is empty, '
                'which means "match all values and all keys"'
            )
        ],
    ),
    ({"tolerations": [{"key": "a", "value": "-"}]}, None),
    (
        {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0}]}}},
        [
            (
                "spec.affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[0].weight: "
                "Invalid value: 0: must be in the range 1-100"
            )
        ],
    ),
    (
        {"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "", "whenUnsatisfiable": "Wait"}]},
        [
            "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
            "spec.topologySpreadConstraints[0].topologyKey: Required value: can not be empty",
            (
                'spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: "Wait": '
                'supported values: "DoNotSchedule", "ScheduleAnyway"'
            ),
        ],
    ),
    (
        {"securityContext": {"supplementalGroups": [-1], "fsGroupChangePolicy": "Never"}},
        [
            (
                'spec.securityContext.fsGroupChangePolicy: Unsupported value: "Never": '
                'supported values: "Always", "OnRootMismatch"'
            ),
            f"spec.securityContext.supplementalGroups[0]: Invalid value: -1: {ANY_ID}",
        ],
    ),
    (
        {"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "-1", "mode": 1024}}]},
        [
            "spec.volumes[0].emptyDir.sizeLimit: Forbidden: SizeLimit field must be a valid resource quantity",
            (
                "spec.volumes[0].emptyDir.mode: Invalid value: 1024: "
                "must be a number between 0 and 01777 (octal), both inclusive"
            ),
        ],
    ),
    (
        {"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {}}}]},
        ["spec.volumes[0].csi.nodePublishSecretRef.name: Required value"],
    ),
    ({"volumes": [{"name": "v", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "A_"}}}]}, None),
    (
        {"volumes": [{"name": "v", "image": {"pullPolicy": "Maybe"}}]},
        [
            "spec.volumes[0].image.reference: Required value",
            (
                'spec.volumes[0].image.pullPolicy: Unsupported value: "Maybe": '
                'supported values: "Always", "IfNotPresent", "Never"'
            ),
        ],
    ),
    (
        {"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "/x"}]}}]},
        ['spec.volumes[0].secret.items[0].path: Invalid value: "/x": must be a relative path'],
    ),
    (
        {"volumes": [{"name": "v", "secret": {"secretName": "s", "items": [{"key": "k", "path": "..x"}]}}]},
        ["spec.volumes[0].secret.items[0].path: Invalid value: \"..x\": must not start with '..'"],
    ),
    (
        {"volumes": [{"name": "v", "projected": {"sources": ODD_PROJECTIONS}}]},
        [
            "spec.volumes[0].projected.sources[0]: Forbidden: may not specify more than 1 volume type per source",
            "spec.volumes[0].projected.sources[0].secret.name: Required value",
            (
                "spec.volumes[0].projected.sources[1].serviceAccountToken.expirationSeconds: "
                "Invalid value: 5000000000: may not specify a duration larger than 2^32 seconds"
            ),
            "spec.volumes[0].projected.path: Required value",
        ],
    ),
    (
        {"securityContext": {"fsGroup": -1}},
        ["spec.securityContext.fsGroup: Invalid value: -1: must be between 0 and 2147483647, inclusive"],
    ),
]


@pytest.mark.parametrize(("fields", "sentences"), PODS, ids=[str(fields)[:70] for fields, _ in PODS])
def test_a_wrong_pod_is_refused_with_the_paths_and_words_of_kubernetes(fields, sentences):
    found = pod(**fields)

    assert found == sentences if sentences is not None else len(found) == 1


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


def test_conditions_and_nominations_of_a_pod_have_names():
    conditions = [{"type": "Ready", "status": "True"}, {"type": "a/b/c", "status": "True"}]

    fields = wrong_change(a_pod(), "status", status={"conditions": conditions, "nominatedNodeName": "N_"})

    assert [text.partition(":")[0] for text in fields] == ["status.conditions[1].Type", "status.nominatedNodeName"]


def test_an_image_has_no_spaces_around_it():
    old = a_pod()

    assert wrong_change(old, spec={"containers": [{**old["spec"]["containers"][0], "image": " x"}]}) == [
        'spec.containers[0].image: Invalid value: " x": must not have leading or trailing whitespace'
    ]


def test_the_quality_of_a_pod_never_changes():
    assert wrong_change(a_pod(), "status", status={"qosClass": "Guaranteed"}) == [
        'status.qosClass: Invalid value: "Guaranteed": field is immutable'
    ]


def test_the_quality_of_a_pod_is_kept_for_clients_that_leave_it_out():
    old = a_pod()

    made = update(old, {**old, "status": {"phase": "Running"}}, "status")

    assert made.object["status"] == {"phase": "Running", "qosClass": "BestEffort"}
