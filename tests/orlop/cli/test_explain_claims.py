"""`orlop explain pvc`: each thing that a claim can wait for, as an API server shows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import IS_DEFAULT, LATE_BINDING, NO_PROVISIONER
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME_CLAIM, POD
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL, JournalEntry, encode_page
from orlop.records.volume_order import ClaimIdentity
from support.explaining.explained_clusters import (
    DRIVER,
    TENANT,
    Build,
    Cluster,
    Explained,
    explained,
    let_tenant_read,
)
from support.provisioning.volume_orders import order

MISSING = (
    "There is no PersistentVolumeClaim data in the namespace team. "
    "`kubectl get persistentvolumeclaims --all-namespaces` lists those that exist.\n"
)
MARKED = {state.STORAGE_PROVISIONER: DRIVER}
LATE = {"volumeBindingMode": LATE_BINDING}
UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available: 3 Insufficient cpu.",
    "lastTransitionTime": "2026-01-02T03:04:05Z",
}


def explain(build: Build, **more: Any) -> Explained:
    ended = explained("pvc", "team/data", build, **more)
    assert (ended.code, ended.errors) == (0, "")
    # People and programs get the same: every sentence of the text is in the JSON.
    for part in ("what", "state", "next"):
        assert ended.json[part] in ended.text
    return ended


# ---- bound -----------------------------------------------------------------------------------------------------------


def test_a_bound_claim_is_explained_with_its_volume_and_pods():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        await cluster.pod(node="n1", phase="Running")
        await cluster.pod("other", claim="something-else", node="n1")

    ended = explain(build)
    assert ended.state == "Bound"
    assert "Bound for 5m: it has the PersistentVolume pv1. Pods that use it: web-0 on the node n1." in ended.text
    assert ended.json["fields"]["pods"] == ["web-0"]
    assert ended.json["fields"]["since"]


MOUNT_FAILED = 'MountVolume.SetUp failed for volume "pv1" : rpc error: code = Internal desc = no multipath'


def test_a_bound_claim_whose_pod_cannot_mount_it_has_the_error_and_the_command_that_shows_more():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        pod = await cluster.pod(node="n1", phase="Pending")
        await cluster.event(pod, POD, "FailedMount", MOUNT_FAILED, count=3)
        await cluster.event(pod, POD, "NotSupported", "of no volume")

    ended = explain(build)
    assert ended.state == "Bound"
    assert f"The pod web-0 has not started. FailedMount 5m ago, 3 times: {MOUNT_FAILED}." in ended.text
    assert "of no volume" not in ended.text
    assert "`kubectl describe pod web-0 -n team`" in ended.next
    (pod,) = ended.json["fields"]["podsNotStarted"]
    assert (pod["name"], [each["message"] for each in pod["failures"]]) == ("web-0", [MOUNT_FAILED])


def test_a_bound_claim_whose_pod_has_not_started_yet_does_not_wait_for_nothing():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        waiting = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        waiting["state"] = {"waiting": {"reason": "ContainerCreating"}}
        await cluster.pod(node="n1", phase="Pending", containerStatuses=[waiting])
        await cluster.pod("web-1", node="n2", phase="Pending")

    ended = explain(build)
    assert "The pod web-0 has not started, and no event shows a failure of its volumes. 1 more have" in ended.text
    assert "kubectl describe pod web-0 -n team" in ended.next


@pytest.mark.parametrize("reason", ["ImagePullBackOff", None])
def test_a_pod_that_has_its_volumes_is_not_explained_with_failures_of_before(reason: str | None):
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        status = {"name": "c", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
        status["state"] = {"waiting": {"reason": reason}} if reason else {"running": {}}
        pod = await cluster.pod(node="n1", phase="Pending", containerStatuses=[status])
        await cluster.event(pod, POD, "FailedMount", MOUNT_FAILED)

    ended = explain(build)
    assert "multipath" not in ended.text
    assert ended.next == "Nothing to do: it waits for nothing."


def test_failures_from_before_a_claim_was_bound_are_not_shown():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim()
        await cluster.volume_of(claim)
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", "no space")

    assert "no space" not in explain(build).text


def test_conditions_of_a_claim_are_shown_with_their_message():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim()
        await cluster.volume_of(claim)
        pending = {"type": "FileSystemResizePending", "status": "True", "message": "waiting for a pod"}
        await cluster.status(PERSISTENT_VOLUME_CLAIM, claim, conditions=[pending])

    assert "Its condition FileSystemResizePending holds: waiting for a pod." in explain(build).text


# ---- lost ------------------------------------------------------------------------------------------------------------


def test_a_claim_whose_volume_was_deleted_is_lost_and_can_be_restored():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim(phase="Lost")
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ClaimLost", "Data on the volume is lost!")

    ended = explain(build)
    assert ended.state == "Lost"
    assert "Lost for 5m: the claim has lost its volume: its PersistentVolume pv1 does not exist any more." in ended.text
    assert "ClaimLost 5m ago: Data on the volume is lost!" in ended.text
    assert "create a PersistentVolume of this name with the same source and without spec.claimRef" in ended.next


def test_a_claim_that_lost_its_volume_on_a_drive_is_restored_by_adoption():
    async def build(cluster: Cluster) -> None:
        annotations = {state.BIND_COMPLETED: "yes", state.STORAGE_PROVISIONER: DRIVER_NAME}
        await cluster.bound_claim(phase="Lost", metadata={"annotations": annotations})

    assert "`orlop adopt` makes it again" in explain(build).next


def test_a_claim_whose_volume_names_another_uid_is_lost_and_gets_it_back_by_a_patch():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim(phase="Lost"), uid="former")

    ended = explain(build)
    assert ended.state == "Lost"
    assert "names a claim of this name with another uid, former" in ended.text
    command = """kubectl patch persistentvolume pv1 --type json -p '[{"op":"remove","path":"/spec/claimRef"}]'"""
    assert command in ended.next


def test_a_claim_whose_volume_is_another_claims_is_lost():
    async def build(cluster: Cluster) -> None:
        await cluster.bound_claim(phase="Lost")
        await cluster.volume_of(await cluster.claim("other"))

    ended = explain(build)
    # No object shows since when.
    assert (
        "Lost: the claim has lost its volume: its PersistentVolume pv1 is bound to the claim team/other." in ended.text
    )
    assert ended.json["fields"]["since"] is None


# ---- a volume by name ------------------------------------------------------------------------------------------------


def test_a_claim_that_names_an_absent_volume_is_never_provisioned():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class()
        await cluster.claim(volumeName="gone", storageClassName="fast")

    ended = explain(build)
    assert ended.state == "NamedVolumeAbsent"
    assert "Pending for 5m: the PersistentVolume gone, which it names, does not exist." in ended.text
    assert "kubectl delete persistentvolumeclaim data -n team" in ended.next


def test_a_claim_that_names_a_volume_of_another_claim_names_that_claim():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.claim("other"))
        await cluster.claim(volumeName="pv1")

    ended = explain(build)
    assert ended.state == "NamedVolumeTaken"
    assert ended.json["fields"]["takenBy"] == "team/other"


def test_a_claim_that_names_the_volume_of_its_predecessor_can_take_it_by_a_patch():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.claim(volumeName="pv1"), uid="former", phase="Released")

    ended = explain(build)
    assert ended.state == "NamedVolumeTaken"
    assert '"path":"/spec/claimRef/uid"' in ended.next


@pytest.mark.parametrize(
    ("volume", "reason"),
    [
        ({"size": "1Gi"}, "requested PV is too small"),
        ({"storageClassName": "slow"}, "storageClassName does not match"),
        ({"volumeMode": "Block"}, "incompatible volumeMode"),
        ({"accessModes": ["ReadOnlyMany"]}, "incompatible accessMode"),
    ],
)
def test_a_claim_that_names_a_volume_which_does_not_fit_has_the_binders_reason(volume: dict[str, Any], reason: str):
    async def build(cluster: Cluster) -> None:
        await cluster.claim(volumeName="pv1")
        await cluster.volume(**volume)

    ended = explain(build)
    assert ended.state == "NamedVolumeMismatch"
    assert ended.json["fields"]["mismatch"] == reason
    assert f"cannot be bound to it: {reason}." in ended.text


def test_a_claim_that_names_a_volume_which_fits_is_about_to_be_bound():
    async def build(cluster: Cluster) -> None:
        await cluster.claim(volumeName="pv1")
        await cluster.volume()

    assert explain(build).state == "Binding"


# ---- classes ---------------------------------------------------------------------------------------------------------


def test_a_claim_for_which_a_volume_exists_is_about_to_be_bound_to_the_smallest():
    async def build(cluster: Cluster) -> None:
        await cluster.claim(size="2Gi")
        await cluster.volume("large")
        await cluster.volume("small", size="3Gi")

    ended = explain(build)
    assert (ended.state, ended.json["fields"]["chosen"]) == ("Binding", "small")


def test_a_claim_without_a_class_where_none_is_the_default_is_told_how_to_get_one():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class()
        await cluster.claim()

    ended = explain(build)
    assert ended.state == "NoClass"
    assert "it names no StorageClass, there is no default one" in ended.text
    assert IS_DEFAULT in ended.next


def test_a_claim_without_a_class_gets_one_that_became_the_default():
    async def build(cluster: Cluster) -> None:
        await cluster.claim()
        await cluster.storage_class(metadata={"annotations": {IS_DEFAULT: "true"}})

    ended = explain(build)
    assert (ended.state, ended.json["fields"]["defaultClass"]) == ("GetsDefaultClass", "fast")


def test_a_claim_that_asks_for_no_class_shows_the_nearest_volumes_and_why_none_fits():
    async def build(cluster: Cluster) -> None:
        await cluster.claim(storageClassName="")
        await cluster.volume("small", size="1Gi")
        await cluster.volume("two-reasons", size="1Gi", volumeMode="Block")
        await cluster.volume_of(await cluster.claim("other"), "taken")

    ended = explain(build)
    assert ended.state == "NoVolumeFits"
    nearest = [(row["persistentVolume"], row["why"]) for row in ended.json["fields"]["nearest"]]
    assert nearest == [
        ("small", "requested PV is too small"),
        ("taken", "it is reserved for the claim team/other"),
        ("two-reasons", "requested PV is too small"),
    ]
    assert "PERSISTENT VOLUME" in ended.text
    assert ended.json["table"] == ended.json["fields"]["nearest"]


def test_a_claim_whose_class_does_not_exist_names_the_class():
    async def build(cluster: Cluster) -> None:
        await cluster.claim(storageClassName="missing")

    ended = explain(build)
    assert ended.state == "ClassMissing"
    assert "Create the StorageClass missing" in ended.next


def test_a_claim_of_a_class_that_provisions_nothing_shows_the_volumes_that_do_not_fit():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class("local", provisioner=NO_PROVISIONER)
        await cluster.claim(storageClassName="local", selector={"matchLabels": {"disk": "ssd"}})
        await cluster.volume(storageClassName="local")

    ended = explain(build)
    assert ended.state == "NoVolumeFits"
    assert [row["why"] for row in ended.json["table"]] == ["the claim's selector does not match its labels"]


# ---- late binding ----------------------------------------------------------------------------------------------------


def test_a_late_binding_claim_without_a_pod_waits_for_its_first_consumer():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        await cluster.claim(storageClassName="fast")
        await cluster.pod("done", phase="Succeeded")

    ended = explain(build)
    assert ended.state == "WaitsForFirstConsumer"
    assert "Pending for 5m: its StorageClass fast binds only for a pod (WaitForFirstConsumer), and no pod" in ended.text
    assert ended.next == "Create a pod that uses the claim."


def test_a_late_binding_claim_whose_pod_is_not_scheduled_has_the_schedulers_message():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        await cluster.claim(storageClassName="fast")
        await cluster.pod(phase="Pending", conditions=[UNSCHEDULABLE])

    ended = explain(build)
    assert ended.state == "WaitsForPodScheduled"
    assert "3 Insufficient cpu." in ended.text
    assert ended.json["fields"]["unschedulableSince"] == "2026-01-02T03:04:05Z"
    assert ended.json["fields"]["since"] == ended.json["fields"]["created"]
    assert ended.json["fields"]["podScheduled"] == UNSCHEDULABLE["message"]


def test_a_late_binding_claim_that_went_back_to_the_scheduler_points_to_the_drivers_error():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        claim = await cluster.claim(storageClassName="fast")
        await cluster.pod(phase="Pending", conditions=[UNSCHEDULABLE])
        message = "rpc error: code = ResourceExhausted desc = the array is full"
        # After one failure the retry is due within seconds: five minutes later the error would be an old one.
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", message, count=12)

    ended = explain(build)
    assert ended.state == "WaitsForPodScheduled"
    assert "Remove the cause of the driver's error: rpc error: code = ResourceExhausted desc = the array" in ended.next


def test_a_late_binding_claim_whose_pod_no_scheduler_has_seen_says_so():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        await cluster.claim(storageClassName="fast")
        await cluster.pod()

    ended = explain(build)
    assert ended.state == "WaitsForPodScheduled"
    assert "no scheduler runs, or none of the name" in ended.next


def test_a_late_binding_claim_whose_pod_was_created_with_a_node_waits_for_ever():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        await cluster.claim(storageClassName="fast")
        await cluster.pod(node="n1")

    ended = explain(build)
    assert ended.state == "PodHasPresetNode"
    assert "web-0 (on n1)" in ended.text
    assert "without spec.nodeName" in ended.next


def test_a_late_binding_claim_of_local_volumes_shows_on_which_nodes_one_fits():
    affinity = {
        "required": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "In", "values": ["yes"]}]}]
        }
    }

    async def build(cluster: Cluster) -> None:
        await cluster.storage_class("local", provisioner=NO_PROVISIONER, **LATE)
        await cluster.node("n1", disk="yes")
        await cluster.node("n2")
        await cluster.claim(storageClassName="local")
        await cluster.volume(storageClassName="local", nodeAffinity=affinity)

    ended = explain(build)
    assert ended.state == "WaitsForFirstConsumer"
    assert [row["why"] for row in ended.json["table"]] == ["fits, on n1"]


# ---- provisioning ----------------------------------------------------------------------------------------------------


async def waiting(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    await cluster.storage_class(**spec.pop("of_class", {}))
    annotations = {**MARKED, **spec.pop("annotations", {})}
    return await cluster.claim(storageClassName="fast", metadata={"annotations": annotations}, **spec)


def test_a_claim_that_is_not_marked_for_its_provisioner_yet_will_be():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class()
        await cluster.claim(storageClassName="fast")

    assert explain(build).state == "Marking"


def test_a_claim_whose_driver_is_not_installed_says_so():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster)

    ended = explain(build)
    assert ended.state == "WaitsForProvisioner"
    assert f"There is no CSIDriver {DRIVER}: most likely the driver is not installed, though" in ended.text
    assert "No Lease shows whether a provisioner runs" in ended.text
    provisioning = ended.json["fields"]["provisioning"]
    assert (provisioning["csiDriverExists"], provisioning["runs"]) == (False, None)


def test_a_claim_whose_provisioner_runs_shows_its_lease_and_the_last_failure():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.csi_driver()
        await cluster.lease(renewed=timedelta(seconds=3))
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", "no space on any disk", count=12)

    ended = explain(build)
    assert "A provisioner runs: the Lease default/disks-example-com, held by p-0, was renewed 3s ago." in ended.text
    assert "There is no CSIDriver" not in ended.text
    assert "ProvisioningFailed 5m ago, 12 times: no space on any disk" in ended.text
    assert ended.json["fields"]["provisioning"]["runs"] is True
    assert ended.json["fields"]["failures"][0]["message"] == "no space on any disk"


NO_SECRET = "failed to get secret a/b: not found"
DRIVER_ERROR = 'failed to provision volume with StorageClass "fast": rpc error: code = Internal desc = no such pool'


@pytest.mark.parametrize("has_order", [False, True], ids=["final error", "call may still run"])
def test_a_claim_whose_driver_fails_points_to_the_drivers_error(*, has_order: bool):
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        uid = claim["metadata"]["uid"]
        entries = [JournalEntry(order(claim=ClaimIdentity("team", "data", uid)), 0.0, 10.0)] if has_order else []
        metadata = {"labels": {DRIVER_LABEL: DRIVER}, "annotations": {ANNOTATION: encode_page(entries)}}
        await cluster.lease(renewed=timedelta(seconds=3), name="orlop-provisioner-journal-x", metadata=metadata)
        source = {"source": {"component": "external-provisioner"}}
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", DRIVER_ERROR, count=12, **source)

    ended = explain(build)
    assert ended.state == "ProvisioningFails"
    assert ("so the driver may have the volume" in ended.text) is has_order
    assert f"the provisioner of {DRIVER} tries to create its volume, and fails." in ended.text
    assert "A provisioner runs: it reported a failure 5m ago." in ended.text
    assert "There is no CSIDriver" not in ended.text
    assert ended.next.startswith(f"Remove the cause of the driver's error: {DRIVER_ERROR}. ")
    assert ended.json["fields"]["provisioning"]["runs"] is True


def test_a_claim_that_the_provisioner_itself_refuses_names_no_error_of_the_driver():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.lease(renewed=timedelta(seconds=3))
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", NO_SECRET, count=9)

    ended = explain(build)
    assert ended.state == "ProvisioningFails"
    assert ended.next.startswith(f"Remove the cause of the provisioner's error: {NO_SECRET}. ")


OLD = "The last failure 5m ago is old: a retry was due, and none was reported."
INFEASIBLE = DRIVER_ERROR.replace("Internal", "InvalidArgument")


@pytest.mark.parametrize(
    ("message", "count", "is_old"),
    [(DRIVER_ERROR, 1, True), (DRIVER_ERROR, 5, True), (DRIVER_ERROR, 9, False), (INFEASIBLE, 1, False)],
    ids=["first", "fifth", "ninth", "retried slowly"],
)
def test_a_failure_whose_retry_was_not_reported_is_shown_as_old(message: str, count: int, *, is_old: bool):
    """The delay of a retry doubles with each failure: after five minutes, only the longest delay still runs."""

    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", message, count=count)

    ended = explain(build)
    assert (OLD in ended.text) is is_old
    assert ended.state == ("WaitsForProvisioner" if is_old else "ProvisioningFails")
    assert ended.json["fields"]["provisioning"]["runs"] is (None if is_old else True)
    assert (message in ended.next) is not is_old


def test_a_driver_that_stopped_beside_its_provisioner_is_not_quoted():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.csi_driver()
        await cluster.lease(renewed=timedelta(seconds=3))
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", DRIVER_ERROR, count=3)

    ended = explain(build)
    assert "A provisioner runs: the Lease default/disks-example-com, held by p-0, was renewed 3s ago." in ended.text
    assert f"{OLD} Most likely the driver does not answer it." in ended.text
    assert ended.next.startswith("Check that the driver runs: ")


def test_a_provisioner_that_stopped_is_named_and_not_the_drivers_last_error():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.lease(renewed=timedelta(minutes=4))
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", DRIVER_ERROR, count=12)

    ended = explain(build)
    assert "No provisioner runs: the Lease default/disks-example-com, held by p-0, was renewed 4m ago." in ended.text
    assert ended.next.startswith("Start the provisioner")
    assert OLD not in ended.text


@pytest.mark.parametrize(
    "event",
    [
        {"source": {"component": "persistentvolume-controller"}},
        {"lastTimestamp": "2026-01-02T03:04:05Z", "firstTimestamp": "2026-01-02T03:04:05Z"},
        {"reason": "SomethingElse"},
    ],
    ids=["the binder's", "old", "another reason"],
)
def test_only_a_recent_failure_of_a_provisioner_shows_that_one_runs(event: dict[str, Any]):
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        reason = event.get("reason", "ProvisioningFailed")
        more = {name: value for name, value in event.items() if name != "reason"}
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, reason, DRIVER_ERROR, **more)

    ended = explain(build)
    assert ended.state == "WaitsForProvisioner"
    assert ended.json["fields"]["provisioning"]["runs"] is None


def test_a_journal_that_was_just_written_shows_that_its_provisioner_runs():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster)
        metadata = {"labels": {DRIVER_LABEL: DRIVER}, "annotations": {ANNOTATION: encode_page([])}}
        await cluster.lease(renewed=timedelta(seconds=3), name="orlop-provisioner-journal-x", metadata=metadata)

    ended = explain(build)
    assert ended.state == "WaitsForProvisioner"
    assert "A provisioner runs: it wrote its journal 3s ago." in ended.text
    assert "CSIDriver" not in ended.text
    assert ended.next == "Read the log of the provisioner, and of the driver beside it, if nothing changes."


def test_a_stale_lease_does_not_hide_a_provisioner_that_runs_without_leader_election():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        await cluster.lease(renewed=timedelta(hours=3))
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "ProvisioningFailed", DRIVER_ERROR, count=12)

    assert explain(build).state == "ProvisioningFails"


def test_a_claim_that_was_bound_by_a_controller_did_not_request_its_volume_by_name():
    def bound(*marks: str) -> Build:
        async def build(cluster: Cluster) -> None:
            annotations = dict.fromkeys([state.BIND_COMPLETED, *marks], "yes")
            await cluster.volume_of(await cluster.bound_claim(metadata={"annotations": annotations}))

        return build

    assert "requests a volume of 10Gi" in explain(bound(state.BOUND_BY_CONTROLLER)).text
    assert "requests a volume by the name pv1 of 10Gi" in explain(bound()).text


def test_a_claim_whose_provisioner_stopped_says_since_when():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster)
        await cluster.lease(renewed=timedelta(hours=3))

    ended = explain(build)
    assert "No provisioner runs: the Lease default/disks-example-com, held by p-0, was renewed 3h ago." in ended.text
    assert ended.next == f"Start the provisioner of {DRIVER} (csi-provisioner, or `orlop provisioner`)."


def test_a_claim_with_an_order_in_the_journal_is_being_created():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        page = encode_page(
            [JournalEntry(order(claim=ClaimIdentity("team", "data", claim["metadata"]["uid"])), 0.0, 10.0)]
        )
        metadata = {"labels": {DRIVER_LABEL: DRIVER}, "annotations": {ANNOTATION: page}}
        await cluster.lease(renewed=timedelta(seconds=3), name="orlop-provisioner-journal-x", metadata=metadata)

    ended = explain(build)
    assert ended.state == "BeingCreated"
    assert "has called CreateVolume, and has no final result yet" in ended.text
    assert "a call of CreateVolume had no final result" in ended.text


async def journal(cluster: Cluster, entry: JournalEntry) -> None:
    metadata = {"labels": {DRIVER_LABEL: DRIVER}, "annotations": {ANNOTATION: encode_page([entry])}}
    await cluster.lease(renewed=timedelta(seconds=3), name="orlop-provisioner-journal-x", metadata=metadata)


@pytest.mark.parametrize(
    ("seconds", "is_being_deleted", "words"),
    [
        (3000.0, False, "a call of CreateVolume may still run, for 4"),
        (3000.0, True, "a call of DeleteVolume may still run, for 4"),
        (-3600.0, False, "a call of CreateVolume had no final result 65m ago"),
    ],
)
def test_a_claim_that_is_gone_is_explained_while_the_driver_may_have_its_volume(
    seconds: float, words: str, *, is_being_deleted: bool
):
    async def build(cluster: Cluster) -> None:
        deadline = cluster.clock.now().timestamp() + seconds
        one = order(claim=ClaimIdentity("team", "data", "former"), volume_name="pvc-former")
        await journal(cluster, JournalEntry(one, deadline, 10.0, is_being_deleted, (order(size_bytes=1),)))

    ended = explain(build)
    assert ended.state == "Gone"
    assert "There is no PersistentVolumeClaim team/data any more." in ended.text
    assert "has a request for the volume pvc-former, one of 2 different requests" in ended.text
    assert words in ended.text
    (request,) = ended.json["fields"]["openRequests"]
    assert (request["driver"], request["isBeingDeleted"]) == (DRIVER, is_being_deleted)


def test_a_journal_of_other_claims_explains_no_claim_that_never_existed():
    async def build(cluster: Cluster) -> None:
        await journal(cluster, JournalEntry(order(claim=ClaimIdentity("team", "other", "u")), 0.0, 10.0))

    ended = explained("pvc", "team/data", build)
    assert (ended.code, ended.errors) == (3, MISSING)


def test_a_claim_that_is_being_deleted_shows_the_request_that_outlives_it():
    async def build(cluster: Cluster) -> None:
        claim = await waiting(cluster)
        identity = ClaimIdentity("team", "data", claim["metadata"]["uid"])
        await journal(cluster, JournalEntry(order(claim=identity), 0.0, 10.0))
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)

    ended = explain(build)
    assert ended.state == "BeingDeleted"
    assert "a call of CreateVolume had no final result" in ended.text
    assert len(ended.json["fields"]["openRequests"]) == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"of_class": {"parameters": {"csi.storage.k8s.io/fstyp": "xfs"}}},
            "unknown parameter csi.storage.k8s.io/fstyp",
        ),
        (
            {"of_class": {"parameters": {"csi.storage.k8s.io/provisioner-secret-name": "s"}}},
            "without csi.storage.k8s.io/provisioner-secret-namespace: set both",
        ),
        ({"selector": {"matchLabels": {"a": "b"}}}, "claim Selector is not supported"),
        ({"size": "10E"}, "a volume has at least 1 and at most"),
        (
            {"dataSource": {"kind": "PersistentVolumeClaim", "name": "gone"}},
            "the claim gone cannot be cloned: it does not",
        ),
    ],
)
def test_a_claim_that_every_provisioner_refuses_has_the_provisioners_sentence(spec: dict[str, Any], words: str):
    async def build(cluster: Cluster) -> None:
        await waiting(cluster, **spec)

    ended = explain(build)
    assert ended.state == "ProvisionerRefuses"
    assert words in ended.json["fields"]["refusal"]
    assert words in ended.text


def test_a_clone_that_waits_for_its_source_names_the_command_that_explains_it():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster, dataSource={"kind": "PersistentVolumeClaim", "name": "gone"})

    ended = explain(build)
    assert "which `orlop explain pvc team/gone` explains" in ended.text
    assert "StorageClass" not in ended.text.partition("Next: ")[2]


def test_a_snapshot_as_source_is_refused_by_our_provisioner_alone():
    async def build(cluster: Cluster) -> None:
        source = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
        await waiting(cluster, dataSource=source)

    ended = explain(build)
    assert ended.state == "ProvisionerRefuses"
    assert "csi-provisioner may support it" in ended.text


def test_a_claim_whose_selected_node_is_gone_names_the_node_and_the_annotation():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster, of_class=LATE, annotations={state.SELECTED_NODE: "n9"})

    ended = explain(build)
    assert ended.state == "SelectedNodeGone"
    assert "selected the node n9 for it, and this node does not exist any more" in ended.text
    assert state.SELECTED_NODE in ended.next


def test_a_claim_whose_selected_node_the_class_does_not_allow_goes_back_to_the_scheduler():
    allowed = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]

    async def build(cluster: Cluster) -> None:
        await cluster.node("n1", zone="b")
        drivers = [{"name": DRIVER, "nodeID": "n1", "topologyKeys": ["zone"]}]
        await cluster.create(CSI_NODE, "n1", spec={"drivers": drivers})
        of_class = {**LATE, "allowedTopologies": allowed}
        await waiting(cluster, of_class=of_class, annotations={state.SELECTED_NODE: "n1"})

    ended = explain(build)
    assert ended.state == "ReturnsToScheduler"
    assert "is not in the class's allowedTopologies" in ended.text


def test_a_claim_that_a_populator_fills_is_left_to_it():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster, dataSourceRef={"apiGroup": "example.com", "kind": "Backup", "name": "b"})

    ended = explain(build)
    assert ended.state == "LeftToOthers"
    assert "Backup.example.com, for which a volume populator provides the volume" in ended.text


# ---- being deleted ---------------------------------------------------------------------------------------------------


def test_a_claim_that_is_being_deleted_names_the_pods_that_keep_it():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim()
        await cluster.volume_of(claim)
        await cluster.pod(node="n1")
        await cluster.pod("unscheduled")
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)

    ended = explain(build)
    assert ended.state == "BeingDeleted"
    assert "Being deleted for 5m: it is kept while pods use it (kubernetes.io/pvc-protection): web-0 on" in ended.text
    assert "unscheduled" not in ended.next
    assert "kubectl delete pod web-0 -n team" in ended.next
    assert ended.json["fields"]["finalizers"] == [state.PVC_PROTECTION]


def test_for_pods_that_are_being_deleted_already_no_deletion_is_advised():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim()
        await cluster.volume_of(claim)
        pod = await cluster.pod(node="n1", phase="Running")
        await cluster.delete(POD, pod)
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)

    ended = explain(build)
    assert "web-0 on the node n1, being deleted for 4m" in ended.text
    assert "delete pod" not in ended.next
    assert "kubectl describe pod web-0 -n team" in ended.next


def test_a_claim_that_is_being_deleted_and_that_no_pod_uses_goes_in_a_moment():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.claim()
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)

    assert "no pod uses it any more" in explain(build).text


def test_a_claim_that_another_finalizer_keeps_names_it():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.claim(metadata={"finalizers": ["example.com/backup"]})
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)
        await cluster.without_finalizer(PERSISTENT_VOLUME_CLAIM, claim, state.PVC_PROTECTION)

    assert "the finalizer example.com/backup keeps it" in explain(build).text


def test_a_claim_that_is_cloned_names_the_clones_it_is_kept_for():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.claim(metadata={"finalizers": ["provisioner.storage.kubernetes.io/cloning-protection"]})
        await cluster.claim("copy", dataSource={"kind": "PersistentVolumeClaim", "name": "data"})
        await cluster.delete(PERSISTENT_VOLUME_CLAIM, claim)
        await cluster.without_finalizer(PERSISTENT_VOLUME_CLAIM, claim, state.PVC_PROTECTION)

    assert "it is kept while volumes are cloned from it" in explain(build).text
    assert "cloning-protection): copy." in explain(build).text


# ---- rights, names ---------------------------------------------------------------------------------------------------


def test_a_tenant_who_may_read_nothing_else_is_told_what_is_unknown_and_the_last_event():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        claim = await cluster.claim(storageClassName="fast")
        message = "waiting for first consumer to be created before binding"
        await cluster.event(claim, PERSISTENT_VOLUME_CLAIM, "WaitForFirstConsumer", message, type="Normal")
        await let_tenant_read(cluster, "persistentvolumeclaims", "events")

    ended = explain(build, user=TENANT)
    assert ended.state == "Unknown"
    assert "the list of storageclasses and the StorageClass fast may not be read with these credentials" in ended.text
    assert "WaitForFirstConsumer 5m ago: waiting for first consumer" in ended.text
    assert "list of pods" in ended.json["fields"]["unreadable"]


def test_a_bound_claim_of_a_tenant_who_may_not_read_volumes_is_bound():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        await let_tenant_read(cluster, "persistentvolumeclaims", "pods")

    ended = explain(build, user=TENANT)
    assert ended.state == "Bound"
    assert "does not exist" not in ended.text
    assert ended.json["fields"]["unreadable"] == ["PersistentVolume pv1", "list of events"]


def test_a_provisioner_whose_leases_may_not_be_read_is_unknown():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster)
        await cluster.lease(renewed=timedelta(hours=3))
        resources = ("persistentvolumeclaims", "pods", "storageclasses", "persistentvolumes")
        await let_tenant_read(cluster, *resources)

    ended = explain(build, user=TENANT)
    assert ended.state == "WaitsForProvisioner"
    assert "Whether a provisioner runs is unknown: the list of leases may not be read" in ended.text
    assert "Whether the driver is installed is unknown" in ended.text


def test_a_marked_claim_whose_class_may_not_be_read_waits_for_the_driver_it_is_marked_for():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster)
        await let_tenant_read(cluster, "persistentvolumeclaims", "pods", "persistentvolumes")

    ended = explain(build, user=TENANT)
    assert ended.state == "WaitsForProvisioner"
    assert f"it waits for a volume from the provisioner of {DRIVER}" in ended.text


def test_a_claim_of_a_class_that_was_migrated_to_a_csi_driver_waits_for_that_driver():
    async def build(cluster: Cluster) -> None:
        await waiting(cluster, of_class={"provisioner": "kubernetes.io/aws-ebs"})

    ended = explain(build)
    assert (ended.state, ended.json["fields"]["provisioning"]["driver"]) == ("WaitsForProvisioner", DRIVER)


def test_a_claim_that_does_not_exist_has_the_exit_code_for_that():
    async def build(_: Cluster) -> None:
        """No claim."""

    ended = explained("pvc", "team/data", build)
    assert (ended.code, ended.errors) == (3, MISSING)


@pytest.mark.parametrize("kind", ["pvc", "persistentvolumeclaim", "persistentvolumeclaims"])
@pytest.mark.parametrize("name", ["data", "team/data", "persistentvolumeclaim/data"])
def test_a_claim_may_be_named_as_kubectl_prints_it(kind: str, name: str):
    async def build(cluster: Cluster) -> None:
        await cluster.claim()

    assert explained(kind, name, build).text.startswith("The PersistentVolumeClaim team/data, created 5m ago, requests")


def test_the_claim_of_a_generic_ephemeral_volume_waits_for_its_pod():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(**LATE)
        template = {"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}
        volumes = [{"name": "scratch", "ephemeral": {"volumeClaimTemplate": template}}]
        spec = {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}
        pod = await cluster.create(POD, "web-0", spec=spec)
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "web-0", "uid": pod["metadata"]["uid"], "controller": True}
        await cluster.claim("web-0-scratch", storageClassName="fast", metadata={"ownerReferences": [owner]})

    ended = explained("pvc", "team/web-0-scratch", build)
    assert (ended.state, ended.json["fields"]["waitingPods"]) == ("WaitsForPodScheduled", ["web-0"])
