"""kubectl's tables."""

from __future__ import annotations

import re

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import (
    SMALLEST,
    attachment,
    binding,
    claim,
    config_map,
    core_event,
    csi_driver,
    csi_node,
    lease,
    named,
    pod,
    storage_class,
    user,
    volume,
    workload,
)
from support.api.api_under_test import Api

TABLE = (
    "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
)
AGE = re.compile(r"\d+s|<unknown>|<invalid>")

COLUMNS: dict[Kind, str] = {
    kinds.NODE: "Name Status Roles Age Version Internal-IP* External-IP* OS-Image* Kernel-Version* Container-Runtime*",
    kinds.POD: "Name Ready Status Restarts Age IP* Node* Nominated_Node* Readiness_Gates*",
    kinds.PERSISTENT_VOLUME: "Name Capacity Access_Modes Reclaim_Policy Status Claim StorageClass "
    "VolumeAttributesClass Reason Age VolumeMode*",
    kinds.PERSISTENT_VOLUME_CLAIM: "Name Status Volume Capacity Access_Modes StorageClass VolumeAttributesClass Age "
    "VolumeMode*",
    kinds.SECRET: "Name Type Data Age",
    kinds.CONFIG_MAP: "Name Data Age",
    kinds.CORE_EVENT: "Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*",
    kinds.EVENT: "Last_Seen Type Reason Object Subobject* Source* Message First_Seen* Count* Name*",
    kinds.STORAGE_CLASS: "Name Provisioner ReclaimPolicy VolumeBindingMode AllowVolumeExpansion Age",
    kinds.CSI_DRIVER: "Name AttachRequired PodInfoOnMount StorageCapacity TokenRequests RequiresRepublish Modes Age",
    kinds.CSI_NODE: "Name Drivers Age",
    kinds.VOLUME_ATTACHMENT: "Name Attacher PV Node Attached Age",
    kinds.CSI_STORAGE_CAPACITY: "Name Created_At",
    kinds.ROLE: "Name Created_At",
    kinds.CLUSTER_ROLE: "Name Created_At",
    kinds.LEASE: "Name Holder Age",
    kinds.NAMESPACE: "Name Status Age",
    kinds.SERVICE_ACCOUNT: "Name Age",
    kinds.DAEMON_SET: "Name Desired Current Ready Up-to-date Available Node_Selector Age Containers* Images* Selector*",
    kinds.DEPLOYMENT: "Name Ready Up-to-date Available Age Containers* Images* Selector*",
    kinds.STATEFUL_SET: "Name Ready Age Containers* Images*",
    kinds.REPLICA_SET: "Name Desired Current Ready Age Containers* Images* Selector*",
    kinds.ROLE_BINDING: "Name Role Age Users* Groups* ServiceAccounts*",
    kinds.CLUSTER_ROLE_BINDING: "Name Role Age Users* Groups* ServiceAccounts*",
}


async def table_of(api: Api, kind: Kind, name: str, **query: str) -> dict:
    return (await api.ask("GET", api.path(kind, name), accept=TABLE, **query)).made


def cells(table: dict) -> dict:
    (row,) = table["rows"]
    return dict(zip((column["name"] for column in table["columnDefinitions"]), row["cells"], strict=True))


@pytest.mark.parametrize("kind", COLUMNS, ids=str)
async def test_each_kind_has_its_columns(api: Api, kind: Kind):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    name = "x" if kind.namespaced else api.unique("x")
    await api.make(kind, SMALLEST[kind](name, api.namespace))
    table = await table_of(api, kind, name)

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    shown = [
        column["name"].replace(" ", "_") + ("*" if column["priority"] else "") for column in table["columnDefinitions"]
    ]
    assert " ".join(shown) == COLUMNS[kind]
    for column in table["columnDefinitions"]:
        assert column.keys() == {"name", "type", "format", "description", "priority"}
    assert len(table["rows"][0]["cells"]) == len(shown)


async def test_the_first_column_is_a_name(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    first, data, age = (await table_of(api, kinds.CONFIG_MAP, "c"))["columnDefinitions"]

    assert (first["name"], first["type"], first["format"]) == ("Name", "string", "name")
    assert (data["name"], data["type"]) == ("Data", "string")
    assert (age["name"], age["type"]) == ("Age", "string")


async def test_a_row_carries_the_metadata_of_its_object(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    (row,) = (await table_of(api, kinds.CONFIG_MAP, "c"))["rows"]

    assert row["cells"][:2] == ["c", 1]
    assert AGE.fullmatch(row["cells"][2])
    assert row["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"],
    }


async def test_a_row_may_carry_the_whole_object_or_none(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    whole = await table_of(api, kinds.CONFIG_MAP, "c", includeObject="Object")
    none = await table_of(api, kinds.CONFIG_MAP, "c", includeObject="None")

    assert whole["rows"][0]["object"] == made
    assert none["rows"][0]["object"] is None


async def test_another_word_for_the_object_is_refused(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=TABLE, includeObject="Fancy")

    answer.is_refused(
        400,
        "BadRequest",
        'Unable to convert to Table as requested: includeObject: Invalid value: "Fancy": '
        "must be 'Metadata', 'Object', 'None', or empty",
    )


async def test_a_list_is_a_table_with_the_lists_metadata(api: Api):
    for name in ("a", "b", "c"):
        await api.make(kinds.LEASE, lease(name))
    table = (await api.ask("GET", api.path(kinds.LEASE), accept=TABLE, limit="2")).made

    assert [row["cells"][0] for row in table["rows"]] == ["a", "b"]
    assert table["metadata"]["remainingItemCount"] == 1
    assert table["metadata"]["continue"]
    assert int(table["metadata"]["resourceVersion"]) > 0


async def test_an_empty_table_has_rows_and_columns_all_the_same(api: Api):
    table = (await api.ask("GET", api.path(kinds.LEASE), accept=TABLE)).made

    assert table["rows"] == []
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Holder", "Age"]


async def test_a_watched_table_tells_its_columns_once(api: Api):
    await api.make(kinds.LEASE, lease("a"))
    await api.make(kinds.LEASE, lease("b"))
    async with api.watch(kinds.LEASE, accept=TABLE) as watching:
        first, second = await watching.all(2)

    assert [column["name"] for column in first["object"]["columnDefinitions"]] == ["Name", "Holder", "Age"]
    assert not second["object"].get("columnDefinitions")
    assert sorted(event["object"]["rows"][0]["cells"][0] for event in (first, second)) == ["a", "b"]
    assert first["object"]["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


async def test_an_error_is_a_status_also_for_who_wants_a_table(api: Api):
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "ghost"), accept=TABLE)

    assert (answer.status, answer.json["kind"]) == (404, "Status")


async def test_a_volumes_row(api: Api):
    name = api.unique("pv")
    await api.make(kinds.PERSISTENT_VOLUME, volume(name, accessModes=["ReadWriteOnce", "ReadOnlyMany"]))
    row = cells(await table_of(api, kinds.PERSISTENT_VOLUME, name))

    assert AGE.fullmatch(row.pop("Age"))
    assert row == {
        "Name": name,
        "Capacity": "1Gi",
        "Access Modes": "RWO,ROX",
        "Reclaim Policy": "Retain",
        "Status": "Pending",
        "Claim": "",
        "StorageClass": "none",
        "VolumeAttributesClass": "<unset>",
        "Reason": "",
        "VolumeMode": "Filesystem",
    }


async def test_a_claims_row(api: Api):
    await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim())
    row = cells(await table_of(api, kinds.PERSISTENT_VOLUME_CLAIM, "c"))

    assert AGE.fullmatch(row.pop("Age"))
    assert row == {
        "Name": "c",
        "Status": "Pending",
        "Volume": "",
        "Capacity": "",
        "Access Modes": "",
        "StorageClass": "none",
        "VolumeAttributesClass": "<unset>",
        "VolumeMode": "Filesystem",
    }


async def test_a_pods_row(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod())
    row = cells(await table_of(api, kinds.POD, "p"))

    assert AGE.fullmatch(row.pop("Age"))
    assert row == {
        "Name": "p",
        "Ready": "0/1",
        "Status": "Pending",
        "Restarts": "0",
        "IP": "<none>",
        "Node": "<none>",
        "Nominated Node": "<none>",
        "Readiness Gates": "<none>",
    }


async def test_a_nodes_row(api: Api):
    name = api.unique("n")
    labels = {"node-role.kubernetes.io/worker": ""}
    await api.make(kinds.NODE, {"metadata": {"name": name, "labels": labels}, "spec": {"unschedulable": True}})
    row = cells(await table_of(api, kinds.NODE, name))

    assert (row["Status"], row["Roles"], row["Version"]) == ("Unknown,SchedulingDisabled", "worker", "")
    assert row["Internal-IP"] == "<none>"


async def test_the_rows_of_storage_kinds(api: Api):
    name = api.unique("s")
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    await api.make(kinds.STORAGE_CLASS, {**storage_class(name), "metadata": {"name": name, "annotations": default}})
    await api.make(kinds.CSI_DRIVER, csi_driver(name))
    await api.make(kinds.CSI_NODE, csi_node(name, {"name": "d", "nodeID": "n"}))
    await api.make(kinds.VOLUME_ATTACHMENT, attachment(name))

    async def row(kind: Kind) -> list:
        return list(cells(await table_of(api, kind, name)).values())[:-1]

    assert (await row(kinds.STORAGE_CLASS))[1:] == ["csi.example.com", "Delete", "Immediate", False]
    listed = (await api.ask("GET", api.path(kinds.STORAGE_CLASS), accept=TABLE)).made
    await api.delete(kinds.STORAGE_CLASS, name)
    assert f"{name} (default)" in {each["cells"][0] for each in listed["rows"]}
    assert await row(kinds.CSI_DRIVER) == [name, True, False, False, "<unset>", False, "Persistent"]
    assert await row(kinds.CSI_NODE) == [name, 1]
    assert await row(kinds.VOLUME_ATTACHMENT) == [name, "csi.example.com", "pv1", "n1", False]


async def test_the_rows_of_workloads(api: Api):
    await api.make(kinds.DEPLOYMENT, workload(replicas=2))
    row = cells(await table_of(api, kinds.DEPLOYMENT, "w"))

    assert AGE.fullmatch(row.pop("Age"))
    assert row == {
        "Name": "w",
        "Ready": "0/2",
        "Up-to-date": 0,
        "Available": 0,
        "Containers": "main",
        "Images": "busybox:1",
        "Selector": "app=x",
    }


async def test_the_rows_of_bindings_and_leases(api: Api):
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", user("u")))
    await api.make(kinds.LEASE, lease())

    assert cells(await table_of(api, kinds.ROLE_BINDING, "b"))["Role"] == "Role/r"
    assert cells(await table_of(api, kinds.ROLE_BINDING, "b"))["Users"] == "u"
    assert cells(await table_of(api, kinds.LEASE, "l"))["Holder"] == "me"


async def test_an_events_row(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("e", api.namespace, count=3, source={"component": "me"}))
    row = cells(await table_of(api, kinds.CORE_EVENT, "e"))

    assert (row["Type"], row["Reason"], row["Object"], row["Message"]) == ("Normal", "Tested", "pod/p", "it was tested")
    assert (row["Source"], row["Count"], row["Name"], row["Last Seen"]) == ("me", 3, "e", "<unknown>")
