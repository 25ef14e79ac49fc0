"""What an object is given when it is born."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import (
    SMALLEST,
    STORED,
    attachment,
    claim,
    config_map,
    container,
    csi_driver,
    named,
    pod,
    storage_class,
    volume,
    workload,
)
from support.api.api_under_test import Api

UID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
SUFFIX = re.compile(r"[bcdfghjklmnpqrstvwxz2456789]{5}")


def written(kind: Kind, api: Api, name: str = "x") -> dict:
    return SMALLEST[kind](name if kind.namespaced else api.unique(name), api.namespace)


async def ready_for_pods(api: Api) -> None:
    """Where a controller makes the account, it may have been quicker."""
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))


@pytest.mark.parametrize("kind", STORED, ids=str)
async def test_an_object_of_each_kind_is_made_and_read_again(api: Api, kind: Kind):
    await ready_for_pods(api)
    answer = await api.create(kind, written(kind, api))

    assert answer.status == 201, answer.text
    made = answer.json
    assert (made["apiVersion"], made["kind"]) == (kind.api_version, kind.kind)
    metadata = made["metadata"]
    assert UID.fullmatch(metadata["uid"])
    assert re.fullmatch("[1-9][0-9]*", metadata["resourceVersion"])
    assert metadata.get("namespace") == (api.namespace if kind.namespaced else None)
    born = datetime.strptime(metadata["creationTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(datetime.now(UTC) - born) < timedelta(hours=1)
    assert await api.read(kind, metadata["name"]) == made


GENERATION_1 = {
    *(kinds.POD, kinds.DEPLOYMENT, kinds.REPLICA_SET, kinds.STATEFUL_SET, kinds.DAEMON_SET),
    *(kinds.VALIDATING_ADMISSION_POLICY, kinds.VALIDATING_ADMISSION_POLICY_BINDING),
}


@pytest.mark.parametrize("kind", STORED, ids=str)
async def test_only_kinds_with_a_counted_spec_are_born_with_a_generation(api: Api, kind: Kind):
    await ready_for_pods(api)
    made = await api.make(kind, written(kind, api))

    assert made["metadata"].get("generation") == (1 if kind in GENERATION_1 else None)


async def test_versions_rise_over_all_kinds(api: Api):
    first = await api.make(kinds.CONFIG_MAP, config_map("a"))
    second = await api.make(kinds.SECRET, named("b"))
    third = await api.make(kinds.STORAGE_CLASS, storage_class(api.unique("c")))

    versions = [int(each["metadata"]["resourceVersion"]) for each in (first, second, third)]
    assert versions == sorted(set(versions))


async def test_a_second_object_of_one_name_is_refused(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("c"))

    (await api.create(kinds.CONFIG_MAP, config_map("c"))).is_refused(
        409, "AlreadyExists", 'configmaps "c" already exists', {"name": "c", "kind": "configmaps"}
    )


async def test_a_second_object_of_a_named_group_is_refused_with_its_group(api: Api):
    name = api.unique("sc")
    await api.make(kinds.STORAGE_CLASS, storage_class(name))

    (await api.create(kinds.STORAGE_CLASS, storage_class(name))).is_refused(
        409,
        "AlreadyExists",
        f'storageclasses.storage.k8s.io "{name}" already exists',
        {"name": name, "group": "storage.k8s.io", "kind": "storageclasses"},
    )


async def test_a_name_is_made_from_its_beginning(api: Api):
    made = await api.make(kinds.CONFIG_MAP, {"metadata": {"generateName": "begin-"}})

    assert made["metadata"]["generateName"] == "begin-"
    begin, name = made["metadata"]["name"][:6], made["metadata"]["name"][6:]
    assert begin == "begin-"
    assert SUFFIX.fullmatch(name)


async def test_the_beginning_of_a_name_is_cut_where_the_whole_would_be_too_long(api: Api):
    made = await api.make(kinds.CONFIG_MAP, {"metadata": {"generateName": "x" * 100}})

    assert made["metadata"]["name"][:-5] == "x" * 58


async def test_a_name_beats_the_beginning_of_one(api: Api):
    made = await api.make(kinds.CONFIG_MAP, {"metadata": {"name": "whole", "generateName": "begin-"}})

    assert made["metadata"]["name"] == "whole"


async def test_an_object_without_any_name_is_refused(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, {"metadata": {}})

    answer.is_refused(
        422,
        "Invalid",
        'ConfigMap "" is invalid: metadata.name: Required value: name or generateName is required',
        {
            "kind": "ConfigMap",
            "causes": [
                {
                    "reason": "FieldValueRequired",
                    "message": "Required value: name or generateName is required",
                    "field": "metadata.name",
                }
            ],
        },
    )


async def test_what_only_the_server_may_set_is_ignored(api: Api):
    given = {"uid": "mine", "creationTimestamp": "2001-01-01T00:00:00Z", "generation": 7, "selfLink": "/mine"}
    given |= {"deletionTimestamp": "2001-01-01T00:00:00Z", "deletionGracePeriodSeconds": 5}
    made = await api.make(kinds.CONFIG_MAP, {"metadata": {"name": "c", **given}})

    metadata = made["metadata"]
    assert UID.fullmatch(metadata["uid"])
    assert metadata["creationTimestamp"] > "2020"
    assert not metadata.keys() & {"selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"}


async def test_a_new_object_must_not_have_a_version(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", "resourceVersion": "5"}})

    answer.is_refused(500, "", "resourceVersion should not be set on objects to be created")


async def test_an_object_of_a_namespace_that_is_not_there_is_refused(api: Api):
    missing = api.unique("missing")
    answer = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": missing}})

    answer.is_refused(404, "NotFound", f'namespaces "{missing}" not found', {"name": missing, "kind": "namespaces"})


async def test_a_claim_is_born_pending_with_protection_and_its_defaults(api: Api):
    made = await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim())

    assert made["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["status"] == {"phase": "Pending"}


async def test_a_claims_two_data_sources_are_copied_to_each_other(api: Api):
    source = {"kind": "PersistentVolumeClaim", "name": "other"}
    old = await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim("old", dataSource=source))
    new = await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim("new", dataSourceRef=source))

    for made in (old, new):
        assert made["spec"]["dataSource"]["name"] == "other"
        assert made["spec"]["dataSourceRef"]["name"] == "other"


async def test_a_claim_without_a_class_gets_the_newest_default_one_and_an_empty_class_stays(api: Api):
    default = {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    name = api.unique("default")
    await api.make(kinds.STORAGE_CLASS, {**storage_class(name), "metadata": {"name": name, **default}})
    none = claim("none")
    del none["spec"]["storageClassName"]

    async def class_of(obj: dict) -> str | None:
        return (await api.make(kinds.PERSISTENT_VOLUME_CLAIM, obj))["spec"].get("storageClassName")

    try:
        assert await class_of(claim("empty", storageClassName="")) == ""
        made = await api.create(kinds.PERSISTENT_VOLUME_CLAIM, none, dryRun="All")
        assert made.made["spec"].get("storageClassName") is not None
    finally:
        await api.delete(kinds.STORAGE_CLASS, name)


async def test_a_volume_is_born_pending_with_protection_and_its_defaults(api: Api):
    made = await api.make(kinds.PERSISTENT_VOLUME, volume(api.unique("pv")))

    assert made["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
    assert made["spec"]["volumeMode"] == "Filesystem"
    assert made["status"]["phase"] == "Pending"
    assert made["status"]["lastPhaseTransitionTime"]


async def test_a_storage_class_deletes_and_binds_at_once_unless_it_says_otherwise(api: Api):
    made = await api.make(kinds.STORAGE_CLASS, storage_class(api.unique("sc")))

    assert (made["reclaimPolicy"], made["volumeBindingMode"]) == ("Delete", "Immediate")
    assert "allowVolumeExpansion" not in made


async def test_a_csi_driver_has_all_its_switches_set(api: Api):
    made = await api.make(kinds.CSI_DRIVER, csi_driver(api.unique("d")))

    assert made["spec"] == {
        "attachRequired": True,
        "podInfoOnMount": False,
        "volumeLifecycleModes": ["Persistent"],
        "storageCapacity": False,
        "fsGroupPolicy": "ReadWriteOnceWithFSType",
        "requiresRepublish": False,
        "seLinuxMount": False,
        "preventPodSchedulingIfMissing": False,
    }


async def test_a_namespace_is_born_active_with_its_name_as_a_label(api: Api):
    made = await api.read(kinds.NAMESPACE, api.namespace)

    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": api.namespace}
    assert made["spec"] == {"finalizers": ["kubernetes"]}
    assert made["status"] == {"phase": "Active"}


async def test_a_secret_is_opaque_and_plain_text_is_merged_into_its_data(api: Api):
    body = named("s", stringData={"a": "new", "b": "x"}, data={"a": "b2xk", "c": "Yw=="})
    made = await api.make(kinds.SECRET, body)

    assert made["type"] == "Opaque"
    assert made["data"] == {"a": "bmV3", "b": "eA==", "c": "Yw=="}
    assert "stringData" not in made


async def test_an_attachment_is_born_detached(api: Api):
    made = await api.make(kinds.VOLUME_ATTACHMENT, attachment(api.unique("va")))

    assert made["status"] == {"attached": False}


async def test_a_node_is_born_not_ready(api: Api):
    made = await api.make(kinds.NODE, named(api.unique("n")))

    assert made["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]


async def test_a_pod_is_born_pending_with_what_kubernetes_fills_in(api: Api):
    await ready_for_pods(api)
    made = await api.make(kinds.POD, pod())

    spec = made["spec"]
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    plain = {key: spec[key] for key in ("restartPolicy", "terminationGracePeriodSeconds", "dnsPolicy", "schedulerName")}
    assert plain == {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
    }
    assert (spec["securityContext"], spec["enableServiceLinks"]) == ({}, True)
    assert (spec["serviceAccountName"], spec["serviceAccount"]) == ("default", "default")
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    tolerated = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
    assert spec["tolerations"] == [
        {"key": "node.kubernetes.io/not-ready", **tolerated},
        {"key": "node.kubernetes.io/unreachable", **tolerated},
    ]


async def test_a_pods_containers_are_filled_in(api: Api):
    await ready_for_pods(api)
    images = {"tagged": "busybox:1", "latest": "busybox:latest", "untagged": "busybox"}
    made = await api.make(
        kinds.POD, named("p", spec={"containers": [container(name, image=image) for name, image in images.items()]})
    )

    filled = {each["name"]: each for each in made["spec"]["containers"]}
    policies = {name: each["imagePullPolicy"] for name, each in filled.items()}
    assert policies == {"tagged": "IfNotPresent", "latest": "Always", "untagged": "Always"}
    assert filled["tagged"]["terminationMessagePath"] == "/dev/termination-log"
    assert filled["tagged"]["terminationMessagePolicy"] == "File"
    assert filled["tagged"]["resources"] == {}


async def test_a_pod_gets_its_service_accounts_token_as_a_volume(api: Api):
    await ready_for_pods(api)
    made = await api.make(kinds.POD, pod())

    (mounted,) = made["spec"]["volumes"]
    assert re.fullmatch(f"kube-api-access-{SUFFIX.pattern}", mounted["name"])
    token, authority, namespace = mounted["projected"]["sources"]
    assert mounted["projected"]["defaultMode"] == 420
    assert token == {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}
    assert authority == {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    item = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    assert namespace == {"downwardAPI": {"items": [item]}}
    folder = "/var/run/secrets/kubernetes.io/serviceaccount"
    (mount,) = made["spec"]["containers"][0]["volumeMounts"]
    assert mount == {"name": mounted["name"], "readOnly": True, "mountPath": folder}


async def test_a_pod_of_a_service_account_that_is_not_there_is_forbidden(api: Api):
    answer = await api.create(kinds.POD, pod(serviceAccountName="ghost"))

    answer.is_refused(
        403,
        "Forbidden",
        f'pods "p" is forbidden: error looking up service account {api.namespace}/ghost: '
        'serviceaccount "ghost" not found',
        {"name": "p", "kind": "pods"},
    )


async def test_requests_of_a_container_come_from_its_limits(api: Api):
    await ready_for_pods(api)
    limited = container(resources={"limits": {"cpu": "0.5", "memory": "64Mi"}})
    made = await api.make(kinds.POD, named("p", spec={"containers": [limited]}))

    assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "500m", "memory": "64Mi"}
    assert made["status"]["qosClass"] == "Guaranteed"


async def test_a_deployment_has_one_replica_and_rolls(api: Api):
    made = await api.make(kinds.DEPLOYMENT, workload())

    spec = made["spec"]
    assert (spec["replicas"], spec["revisionHistoryLimit"], spec["progressDeadlineSeconds"]) == (1, 10, 600)
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"},
    }
    assert spec["template"]["spec"]["restartPolicy"] == "Always"


async def test_fields_a_kind_does_not_have_are_dropped_with_a_warning(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, {**config_map(), "foo": 1})

    assert "foo" not in answer.made
    assert answer.headers["warning"] == '299 - "unknown field \\"foo\\""'


async def test_strict_validation_refuses_unknown_and_doubled_fields(api: Api):
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c"},"foo":1,"data":{"a":"1","a":"2"}}'
    path = api.path(kinds.CONFIG_MAP)
    answer = await api.ask("POST", path, body, fieldValidation="Strict")

    answer.is_refused(
        400,
        "BadRequest",
        'ConfigMap in version "v1" cannot be handled as a ConfigMap: '
        'strict decoding error: unknown field "foo", duplicate field "data.a"',
    )
    assert (await api.ask("POST", path, body, fieldValidation="Ignore")).made["data"] == {"a": "2"}


async def test_quantities_are_written_in_their_shortest_form(api: Api):
    made = await api.make(kinds.PERSISTENT_VOLUME, volume(api.unique("pv"), capacity={"storage": "1024Mi"}))

    assert made["spec"]["capacity"] == {"storage": "1Gi"}
