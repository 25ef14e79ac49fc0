"""Cases of Kubernetes' own tests of volume scheduling, by their names there."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.controllers.scheduling.node_search import Found
from orlop.kube.kinds import CSI_DRIVER, CSI_STORAGE_CAPACITY, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import ObjectName, annotations
from support.api.api_objects import volume as api_volume
from support.scheduling.fake_binder import DRIVER, HOST, SELECTED
from support.scheduling.scheduling_worlds import SchedulingWorld, scheduling_world
from support.scheduling.searched_nodes import (
    SearchedNodes,
    attachment,
    bound_claim,
    capacity,
    claim,
    claim_ref,
    csi_driver,
    csi_node,
    late_class,
    node,
    placed,
    pod,
    volume,
)

Object = dict[str, Any]
AVAILABLE = "0/1 nodes are available: "
BIND_CONFLICT = f"{AVAILABLE}1 node(s) didn't find available persistent volumes to bind."
NO_PROVISIONER = "kubernetes.io/no-provisioner"
STATIC = late_class(provisioner=NO_PROVISIONER)
ELSEWHERE = [{"matchLabelExpressions": [{"key": "host", "values": ["elsewhere"]}]}]


def searched(**objects: Any) -> SearchedNodes:
    return SearchedNodes(**{"nodes": [node()], "classes": [late_class()], **objects})


def outcome(body: Object, **objects: Any) -> str:
    """The message, or which claims get which volumes, and which are provisioned."""
    found = searched(**objects).find(body)
    if not isinstance(found, Found):
        return found.message
    bindings = [f"{one.claim['metadata']['name']}={one.volume['metadata']['name']}" for one in found.volumes.bindings]
    provisions = [f"+{one['metadata']['name']}" for one in found.volumes.provisions]
    return " ".join([*bindings, *provisions]) or "fits"


# ---- volumebinding: FindPodVolumes -----------------------------------------------------------------------------------

SMALL, LARGE = volume("small", "1Gi", on="n1"), volume("large", "5Gi", on="n1")
FIND: list[tuple[str, list[str], dict[str, list[Object]], str]] = [
    ("no-volumes", [], {}, "fits"),
    (
        "no-pvcs",
        ["c"],
        {},
        f'{AVAILABLE}persistentvolumeclaim "c" not found.',
    ),
    ("bound-pvc", ["c"], {"claims": [bound_claim()], "volumes": [volume(phase="Bound")]}, "fits"),
    (
        "bound-pvc,pv-not-exists",
        ["c"],
        {"claims": [bound_claim()]},
        f'{AVAILABLE}persistentvolume "v" not found.',
    ),
    (
        "prebound-pvc",
        ["c"],
        {"claims": [claim(volumeName="v")], "volumes": [volume()]},
        f"{AVAILABLE}pod has unbound immediate PersistentVolumeClaims.",
    ),
    ("unbound-pvc,pv-same-node", ["c"], {"claims": [claim()], "volumes": [SMALL, LARGE]}, "c=small"),
    (
        "unbound-pvc,pv-different-node",
        ["c"],
        {"claims": [claim()], "volumes": [volume(on="n2")], "classes": [STATIC]},
        BIND_CONFLICT,
    ),
    ("two-unbound-pvcs", ["c", "d"], {"claims": [claim(), claim("d")], "volumes": [SMALL, LARGE]}, "c=small d=large"),
    (
        "two-unbound-pvcs,order-by-size",
        ["c", "d"],
        {"claims": [claim("c", "5Gi"), claim("d", "1Gi")], "volumes": [SMALL, LARGE]},
        "d=small c=large",
    ),
    (
        "two-unbound-pvcs,partial-match",
        ["c", "d"],
        {"claims": [claim(), claim("d")], "volumes": [SMALL], "classes": [STATIC]},
        BIND_CONFLICT,
    ),
    (
        "one-bound,one-unbound",
        ["c", "d"],
        {"claims": [bound_claim(), claim("d")], "volumes": [volume(phase="Bound"), SMALL]},
        "d=small",
    ),
    (
        "one-prebound,one-unbound",
        ["c", "d"],
        {"claims": [claim(volumeName="v"), claim("d")], "volumes": [volume(), SMALL]},
        f"{AVAILABLE}pod has unbound immediate PersistentVolumeClaims.",
    ),
    (
        "immediate-bound-pvc",
        ["c"],
        {"claims": [bound_claim(class_name="now")], "volumes": [volume(phase="Bound")]},
        "fits",
    ),
    (
        "immediate-unbound-pvc",
        ["c"],
        {"claims": [claim(class_name="now")], "classes": [late_class("now", mode="Immediate")]},
        f"{AVAILABLE}pod has unbound immediate PersistentVolumeClaims.",
    ),
    (
        "immediate-unbound-pvc,delayed-mode-bound",
        ["c", "d"],
        {
            "claims": [claim(class_name="now"), bound_claim("d")],
            "volumes": [volume(phase="Bound")],
            "classes": [late_class(), late_class("now", mode="Immediate")],
        },
        f"{AVAILABLE}pod has unbound immediate PersistentVolumeClaims.",
    ),
    (
        "immediate-unbound-pvc,delayed-mode-unbound",
        ["c", "d"],
        {
            "claims": [claim(class_name="now"), claim("d")],
            "classes": [late_class(), late_class("now", mode="Immediate")],
        },
        f"{AVAILABLE}pod has unbound immediate PersistentVolumeClaims.",
    ),
    # ---- with provisioning
    ("one-provisioned", ["c"], {"claims": [claim()]}, "+c"),
    (
        "two-unbound-pvcs,one-matched,one-provisioned",
        ["c", "d"],
        {"claims": [claim(), claim("d")], "volumes": [SMALL]},
        "c=small +d",
    ),
    (
        "one-bound,one-provisioned",
        ["c", "d"],
        {"claims": [bound_claim(), claim("d")], "volumes": [volume(phase="Bound")]},
        "+d",
    ),
    (
        "one-binding,one-selected-node",
        ["c", "d"],
        {"claims": [claim(), claim("d", annotations={SELECTED: "n1"})], "volumes": [SMALL, LARGE]},
        "c=small +d",
    ),
    ("invalid-provisioner", ["c"], {"claims": [claim()], "classes": [STATIC]}, BIND_CONFLICT),
    (
        "volume-topology-unsatisfied",
        ["c"],
        {"claims": [claim()], "classes": [late_class(allowedTopologies=ELSEWHERE)]},
        BIND_CONFLICT,
    ),
    (
        "pv-prebound-to-claim",
        ["c"],
        {"claims": [claim()], "volumes": [volume("kept", "5Gi", on="n1", claimRef=claim_ref()), SMALL]},
        "c=kept",
    ),
    (
        "pv-prebound-to-another-uid",
        ["c"],
        {"claims": [claim(uid="new")], "volumes": [volume("kept", on="n1", claimRef=claim_ref(uid="old"))]},
        "+c",
    ),
    (
        "pv not found claim lost",
        ["c"],
        {"claims": [bound_claim() | {"status": {"phase": "Lost"}}]},
        f'{AVAILABLE}persistentvolumeclaim "c" bound to non-existent persistentvolume "v".',
    ),
    (
        "bound and unbound unsatisfied",
        ["c", "d"],
        {"claims": [bound_claim(), claim("d")], "volumes": [volume(on="n2", phase="Bound")], "classes": [STATIC]},
        (
            f"{AVAILABLE}1 node(s) didn't find available persistent volumes to bind, "
            "1 node(s) didn't match PersistentVolume's node affinity."
        ),
    ),
]


@pytest.mark.parametrize(("claims", "objects", "expected"), [row[1:] for row in FIND], ids=[row[0] for row in FIND])
def test_find_pod_volumes(claims: list[str], objects: dict[str, list[Object]], expected: str):
    assert outcome(pod("p", *claims), **objects) == expected


def test_generic_ephemeral_no_pvc():
    body = pod(volumes=[{"name": "data", "ephemeral": {}}])

    assert outcome(body) == (
        f'{AVAILABLE}waiting for ephemeral volume controller to create the persistentvolumeclaim "p-data".'
    )


def test_generic_ephemeral_wrong_pvc():
    body = pod(volumes=[{"name": "data", "ephemeral": {}}])

    assert outcome(body, claims=[claim("p-data", owner="somebody")]) == (
        f"{AVAILABLE}PVC default/p-data was not created for pod default/p (pod is not owner)."
    )


# ---- volumebinding: assumptions --------------------------------------------------------------------------------------


def test_tmpupdate_failed_a_reservation_of_which_nothing_is_written_is_undone_whole():
    new = late_class("new")
    s = searched(classes=[STATIC, new], claims=[claim("a"), claim("b", class_name="new"), claim("c")], volumes=[SMALL])
    made = s.reserve(pod("p", "a", "b"))
    assert made is not None
    while_reserved = s.message(pod("q", "c"))
    s.reservations.give_up(made)

    assert (while_reserved, s.message(pod("q", "c"))) == (BIND_CONFLICT, "fits n1")
    assert "claimRef" not in (s.search.volumes.get(ObjectName(None, "small")) or {})["spec"]
    assert SELECTED not in annotations(s.search.claims.get(ObjectName("default", "b")) or {})
    assert len(s.reservations) == 0


def test_provision_api_update_failed_only_unwritten_assumptions_are_reverted():
    """A volume whose reservation was written stays reserved when the pod is given up; an unwritten one is free."""
    s = searched(classes=[STATIC], claims=[claim("a"), claim("b")], volumes=[SMALL, volume("other", on="n1")])
    made = s.reserve(pod("p", "a", "b"))
    assert made is not None
    written = s.search.volumes.get(ObjectName(None, "other")) or {}
    stored = {**written, "metadata": {**written["metadata"], "resourceVersion": "1000"}}
    s.reservations.wrote_volume(made, stored)
    s.reservations.give_up(made)

    reserved = {
        name: "claimRef" in (s.search.volumes.get(ObjectName(None, name)) or {})["spec"] for name in ("small", "other")
    }
    assert reserved == {"small": False, "other": True}


def test_delayed_informer_event_an_older_version_does_not_undo_our_write():
    s = searched(claims=[claim("a"), claim("b")], classes=[STATIC], volumes=[SMALL])
    made = s.reserve(pod("p", "a"))
    assert made is not None
    ours = s.search.volumes.get(ObjectName(None, "small")) or {}
    s.reservations.wrote_volume(made, {**ours, "metadata": {**ours["metadata"], "resourceVersion": "1000"}})
    s.put("volumes", volume("small", on="n1", labels={"written": "before us"}))

    assert "claimRef" in (s.search.volumes.get(ObjectName(None, "small")) or {})["spec"]
    assert s.message(pod("q", "b")) == BIND_CONFLICT


def test_concurrent_assume_the_second_pod_sees_the_choice_of_the_first():
    s = searched(claims=[claim("a"), claim("b")], classes=[STATIC], volumes=[SMALL, LARGE])
    chosen = [s.reserve(pod(name, one)) for name, one in (("p", "a"), ("q", "b"))]

    assert [made.claims[0].volume for made in chosen if made is not None] == [
        ObjectName(None, "small"),
        ObjectName(None, "large"),
    ]


# ---- volumebinding: TestCapacity -------------------------------------------------------------------------------------

HERE = {"matchLabels": {"host": "n1"}}
NO_ROOM = f"{AVAILABLE}1 node(s) did not have enough free storage."
CAPACITY: list[tuple[str, Object, str]] = [
    ("network-attached", {"topology": {}, "capacity": "1Gi"}, "+c"),
    ("local-storage", {"topology": HERE, "capacity": "1Gi"}, "+c"),
    ("wrong-node", {"topology": {"matchLabels": {"host": "n2"}}, "capacity": "1Gi"}, NO_ROOM),
    ("insufficient-volume-size", {"topology": HERE, "capacity": "1Gi", "maximumVolumeSize": "1Mi"}, NO_ROOM),
    ("zero-storage", {"topology": HERE, "capacity": "0"}, NO_ROOM),
    ("nil-storage", {"topology": HERE}, NO_ROOM),
]


@pytest.mark.parametrize(("fields", "expected"), [row[1:] for row in CAPACITY], ids=[row[0] for row in CAPACITY])
def test_capacity(fields: Object, expected: str):
    objects = {"claims": [claim()], "capacities": [capacity(**fields)]}

    assert outcome(pod("p", "c"), csi_drivers=[csi_driver(storageCapacity=True)], **objects) == expected
    assert outcome(pod("p", "c"), csi_drivers=[csi_driver(storageCapacity=False)], **objects) == "+c"


# ---- volumerestrictions, nodevolumelimits ----------------------------------------------------------------------------


def test_access_mode_conflict_unschedulable():
    objects = {"claims": [claim(accessModes=["ReadWriteOncePod"])], "pods": [placed(pod("q", "c"), "n2")]}

    assert outcome(pod("p", "c"), **objects) == (
        f"{AVAILABLE}1 node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already "
        "in-use by another pod."
    )


def test_should_count_volume_attachments_towards_volume_limit_when_no_pods_exist():
    objects = {
        "csi_nodes": [csi_node(count=1)],
        "claims": [claim()],
        "volumes": [volume("old", class_name="x", phase="Bound")],
        "attachments": [attachment("a", "old")],
    }

    assert outcome(pod("p", "c"), **objects) == f"{AVAILABLE}1 node(s) exceed max volume count."


def test_count_pending_pvcs_towards_volume_limit():
    objects = {
        "csi_nodes": [csi_node(count=2)],
        "claims": [claim(name) for name in ("c", "d", "e")],
        "pods": [placed(pod("q", "d", "e"), "n1")],
    }

    assert outcome(pod("p", "c"), **objects) == f"{AVAILABLE}1 node(s) exceed max volume count."


def test_gate_enabled_fail_when_driver_not_installed_and_the_driver_prevents_scheduling():
    objects = {"claims": [claim()], "csi_drivers": [csi_driver(preventPodSchedulingIfMissing=True)]}

    assert outcome(pod("p", "c"), **objects) == f"{AVAILABLE}1 d.example CSI driver is not installed on the node."


# ---- PreBind and test/integration/volumescheduling, on virtual time --------------------------------------------------


async def two_nodes(w: SchedulingWorld, **of_class: Any) -> None:
    for name in ("n1", "n2"):
        await w.node(name)
    await w.late_class(**of_class)


@pytest.mark.virtual_time
async def test_wait_pv_prebound():
    async with scheduling_world() as w:
        await two_nodes(w, provisioner=NO_PROVISIONER)
        await w.local_volume("v", "n2", claimRef={"namespace": "default", "name": "c"})
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(3)

        found = await w.find(PERSISTENT_VOLUME, "v") or {}
        assert await w.node_of() == "n2"
        assert "pv.kubernetes.io/bound-by-controller" not in annotations(found)


@pytest.mark.virtual_time
async def test_wait_pvc_prebound_waits_for_the_binder_and_goes_to_its_volume():
    async with scheduling_world(binds=False) as w:
        await two_nodes(w)
        await w.local_volume("v", "n2")
        await w.claim(volumeName="v")
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            why = await w.why()
            await w.merge(
                PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
            )
            await w.settle()

        assert why == "Unschedulable: 0/2 nodes are available: pod has unbound immediate PersistentVolumeClaims."
        assert await w.node_of() == "n2"


@pytest.mark.virtual_time
async def test_mix_immediate_and_wait():
    async with scheduling_world() as w:
        await two_nodes(w)
        await w.client.create(
            PERSISTENT_VOLUME,
            api_volume("now", storageClassName="", nodeAffinity=_on("n2"), csi={"driver": DRIVER, "volumeHandle": "x"}),
        )
        await w.claim("a", storageClassName="", volumeName="now")
        mark = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
        await w.merge(PERSISTENT_VOLUME_CLAIM, "a", mark)
        await w.claim("b")
        async with w.scheduling():
            await w.pod("p", "a", "b")
            await w.settle(3)

        assert await w.node_of() == "n2"
        assert annotations(await w.find(PERSISTENT_VOLUME_CLAIM, "b") or {})[SELECTED] == "n2"


@pytest.mark.virtual_time
async def test_reschedule_on_storage_class_add_and_on_delay_binding_pvc_add():
    async with scheduling_world() as w:
        await w.node()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            await w.late_class()
            await w.settle()
            before = await w.node_of()
            await w.claim()
            await w.settle()

        assert before is None
        assert await w.node_of() == "n1"


@pytest.mark.virtual_time
async def test_reschedule_provisioning():
    """The node is taken off the claim, so that another can be chosen when it has room."""
    async with scheduling_world() as w:
        await two_nodes(w)
        await w.claim()
        w.binder.refuse["c"] = 1
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(5)

        assert await w.node_of() in {"n1", "n2"}


@pytest.mark.virtual_time
async def test_binding_succeed_the_volume_is_reserved_and_the_other_claim_given_to_the_node():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class(provisioner=NO_PROVISIONER)
        await w.late_class("new")
        await w.local_volume("v", "n1")
        made = await w.claim("a")
        await w.claim("b", storageClassName="new")
        async with w.scheduling():
            await w.settle()
            w.binder.is_asleep = True
            await w.pod("p", "a", "b")
            await w.settle(5)
            volume, claimed = await w.find(PERSISTENT_VOLUME, "v") or {}, await w.find(PERSISTENT_VOLUME_CLAIM, "a")
            provisioned = await w.find(PERSISTENT_VOLUME_CLAIM, "b") or {}
            waits = await w.node_of()
            w.binder.wake()
            await w.settle(5)

        assert volume["spec"]["claimRef"].items() >= {"name": "a", "uid": made["metadata"]["uid"]}.items()
        assert annotations(volume)["pv.kubernetes.io/bound-by-controller"] == "yes"
        assert claimed == made, "its volumeName and its marks are the binder's to write"
        assert annotations(provisioned)[SELECTED] == "n1"
        assert (waits, await w.node_of()) == (None, "n1")


@pytest.mark.virtual_time
async def test_bound_by_pv_controller_before_bind():
    """Somebody changes the volume between the choice and the write: a conflict, and the next try succeeds."""
    async with scheduling_world() as w:
        await w.node()
        await w.late_class(provisioner=NO_PROVISIONER)
        await w.local_volume("v", "n1")
        await w.claim()
        async with w.scheduling():
            await w.settle()
            await w.merge(PERSISTENT_VOLUME, "v", {"metadata": {"labels": {"changed": "yes"}}})
            await w.pod("p", "c")
            await w.settle(15)

        assert await w.node_of() == "n1"


@pytest.mark.virtual_time
async def test_pod_deleted_after_time():
    async with scheduling_world(binds=False) as w:
        await w.node()
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(50)
            await w.delete(POD, "p")
            w.binder.wake()
            await w.settle(50)

        assert await w.find(POD, "p") is None
        assert [entry for entry in w.log if entry.level.name in {"WARNING", "ERROR"}] == []


@pytest.mark.virtual_time
async def test_capacity_that_appears_wakes_the_pod():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class()
        await w.client.create(CSI_DRIVER, {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}})
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            before = await w.why()
            topology = {"matchLabels": {HOST: "n1"}}
            body = {"metadata": {"name": "k"}, "storageClassName": "late", "nodeTopology": topology, "capacity": "5Gi"}
            await w.client.create(CSI_STORAGE_CAPACITY, body, namespace="default")
            await w.settle()

        assert before == f"Unschedulable: {NO_ROOM}"
        assert await w.node_of() == "n1"


def _on(host: str) -> Object:
    expression = {"key": HOST, "operator": "In", "values": [host]}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}
