"""`orlop explain pv`: each thing that a PersistentVolume can wait for, as an API server shows it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import LATE_BINDING
from orlop.kube.kinds import PERSISTENT_VOLUME, POD
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.explaining.explained_clusters import (
    DRIVER,
    TENANT,
    Build,
    Cluster,
    Explained,
    explained,
    let_tenant_read,
)

ON_N1 = {
    "required": {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}]}
        ]
    }
}
GONE: dict[str, Any] = {"metadata": {"name": "data", "uid": "former"}}
"""A claim that is no longer there."""
PROVISIONED = {"metadata": {"annotations": {state.PROVISIONED_BY: DRIVER}, "finalizers": [FINALIZER]}}
DELETE = {"persistentVolumeReclaimPolicy": "Delete", "phase": "Released"}
LOCAL = {"source": {"local": {"path": "/mnt/disk"}}, "nodeAffinity": ON_N1}


def explain(build: Build, **more: Any) -> Explained:
    ended = explained("pv", "pv1", build, **more)
    assert (ended.code, ended.errors) == (0, "")
    for part in ("what", "state", "next"):
        assert ended.json[part] in ended.text
    return ended


# ---- available -------------------------------------------------------------------------------------------------------


def test_an_available_volume_shows_the_claims_that_it_fits_and_why_not_the_others():
    async def build(cluster: Cluster) -> None:
        await cluster.volume()
        await cluster.claim("fitting", storageClassName="")
        await cluster.claim("large", size="20Gi", storageClassName="")
        await cluster.claim("elsewhere", volumeName="pv9")
        await cluster.volume_of(
            await cluster.claim("bound", volumeName="pv2", metadata={"annotations": {state.BIND_COMPLETED: "yes"}}),
            "pv2",
        )

    ended = explain(build)
    assert ended.state == "Available"
    assert "Available for 5m: no claim has it. It fits 1 of 3 waiting claims: team/fitting." in ended.text
    rows = {row["claim"]: row["why"] for row in ended.json["table"]}
    assert rows == {
        "team/fitting": "fits",
        "team/large": "requested PV is too small",
        "team/elsewhere": "it asks for the volume pv9",
    }
    assert ended.json["fields"]["fits"] == ["team/fitting"]


def test_an_available_volume_fits_a_late_binding_claim_once_a_pod_uses_it():
    async def build(cluster: Cluster) -> None:
        await cluster.storage_class(volumeBindingMode=LATE_BINDING)
        await cluster.volume(storageClassName="fast")
        await cluster.claim(storageClassName="fast")

    assert [row["why"] for row in explain(build).json["table"]] == ["fits, once a pod uses the claim"]


def test_an_available_volume_for_which_no_claim_waits_says_so():
    async def build(cluster: Cluster) -> None:
        await cluster.volume()

    ended = explain(build)
    assert "No claim waits for a volume." in ended.text
    assert ended.next == "Create a claim that it fits, or wait for one."


def test_an_available_volume_that_is_reserved_names_its_claim():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(GONE, uid="", phase="Available")

    assert "it is reserved for the claim team/data, which is not bound to it yet" in explain(build).text


# ---- bound -----------------------------------------------------------------------------------------------------------


def test_a_bound_volume_shows_its_claim_its_pods_and_its_nodes():
    async def build(cluster: Cluster) -> None:
        await cluster.node("n1", **{"kubernetes.io/hostname": "n1"})
        await cluster.node("n2", **{"kubernetes.io/hostname": "n2"})
        await cluster.volume_of(await cluster.bound_claim(), nodeAffinity=ON_N1)
        await cluster.pod(node="n1")

    ended = explain(build)
    assert ended.state == "Bound"
    assert (
        "Bound for 5m: the claim team/data has it. Pods that use it: web-0 on n1. It can be used on n1." in ended.text
    )
    assert (ended.json["fields"]["pods"], ended.json["fields"]["nodes"]) == (["web-0"], ["n1"])


def test_a_bound_volume_that_cannot_be_attached_for_its_pod_has_the_error():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim())
        pod = await cluster.pod(node="n1")
        await cluster.event(pod, POD, "FailedAttachVolume", "not yet")

    ended = explain(build)
    assert ended.state == "Bound"
    assert "The pod web-0 has not started. FailedAttachVolume 5m ago: not yet." in ended.text
    assert "kubectl describe pod web-0 -n team" in ended.next


def test_a_bound_volume_whose_node_is_gone_says_that_no_pod_can_run():
    async def build(cluster: Cluster) -> None:
        await cluster.node("n2", **{"kubernetes.io/hostname": "n2"})
        await cluster.volume_of(await cluster.bound_claim(), nodeAffinity=ON_N1)

    ended = explain(build)
    assert "Its node affinity allows no node that exists" in ended.text
    assert ended.json["fields"]["nodes"] == []


def test_a_volume_whose_claim_is_bound_to_another_one_becomes_available():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim("pv2"))

    ended = explain(build)
    assert ended.state == "ClaimBoundElsewhere"
    assert "bound to another volume, pv2; this one becomes Available" in ended.text


def test_a_surplus_volume_that_was_provisioned_is_deleted_unless_its_policy_is_changed():
    async def build(cluster: Cluster) -> None:
        claim = await cluster.bound_claim("pv2")
        await cluster.volume_of(claim, persistentVolumeReclaimPolicy="Delete", **PROVISIONED)

    ended = explain(build)
    assert "this one is released, and deleted with its data" in ended.text
    assert '"persistentVolumeReclaimPolicy":"Retain"' in ended.next


def test_a_volume_whose_mode_is_not_the_claims_cannot_be_bound_to_it():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.claim(), phase="Pending", volumeMode="Block")

    ended = explain(build)
    assert ended.state == "ModeMismatch"
    assert "its volumeMode is Block, and the claim's Filesystem" in ended.text


def test_a_volume_whose_claim_does_not_know_it_yet_is_about_to_be_bound():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.claim(), phase="Pending")

    assert explain(build).state == "Binding"


# ---- released: Retain and Recycle ------------------------------------------------------------------------------------


def test_a_retained_volume_shows_the_commands_that_offer_it_again_and_warns_of_its_data():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(GONE, phase="Released")

    ended = explain(build)
    assert ended.state == "Released"
    assert "Released for 5m: its claim team/data is gone, and its policy Retain keeps it" in ended.text
    for path in ("/spec/claimRef", "/spec/claimRef/uid"):
        assert (
            f"""kubectl patch persistentvolume pv1 --type json -p '[{{"op":"remove","path":"{path}"}}]'""" in ended.next
        )
    assert "The data stay on it, and the next claim can read them" in ended.next
    # Programs run the commands: without what sets them off in a sentence.
    assert ended.json["fields"]["commands"]["delete"] == "kubectl delete persistentvolume pv1"
    assert "`" not in str(ended.json["fields"])


def test_a_released_volume_whose_claim_was_created_again_shows_both_uids():
    async def build(cluster: Cluster) -> None:
        await cluster.claim()
        await cluster.volume_of(GONE, phase="Released")

    ended = explain(build)
    assert "the claim of this name that exists now was created later" in ended.text
    assert "that of the volume's claim former" in ended.text
    assert ended.json["fields"]["claimUid"] == "former"


def test_a_volume_whose_claim_is_gone_but_that_is_bound_still_is_about_to_be_released():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(GONE, phase="Bound")

    assert explain(build).state == "BecomesReleased"


def test_a_volume_that_cannot_be_recycled_says_why_and_how_to_keep_it():
    async def build(cluster: Cluster) -> None:
        message = "No recycler plugin found for the volume!"
        await cluster.volume_of(GONE, phase="Failed", persistentVolumeReclaimPolicy="Recycle", message=message)

    ended = explain(build)
    assert ended.state == "CannotBeRecycled"
    assert "No recycler plugin found" in ended.text
    assert '"persistentVolumeReclaimPolicy":"Retain"' in ended.next


# ---- released: Delete ------------------------------------------------------------------------------------------------


def test_a_volume_that_is_still_attached_waits_for_its_volume_attachment():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(GONE, **DELETE, **PROVISIONED)
        await cluster.attachment()

    ended = explain(build)
    assert ended.state == "WaitsForDetach"
    assert "it waits until the VolumeAttachment csi-1 on the node n1 is deleted" in ended.text
    assert "orlop explain va csi-1" in ended.next
    assert ended.json["fields"]["attachments"] == ["csi-1"]


def test_a_volume_whose_provisioner_does_not_run_waits_for_it():
    async def build(cluster: Cluster) -> None:
        volume = await cluster.volume_of(GONE, **DELETE, **PROVISIONED)
        await cluster.lease(renewed=timedelta(minutes=5))
        await cluster.event(volume, PERSISTENT_VOLUME, "VolumeFailedDelete", "disk is busy", count=4)

    ended = explain(build)
    assert ended.state == "WaitsForDeletion"
    assert "No provisioner runs: the Lease default/disks-example-com, held by p-0, was renewed 5m ago." in ended.text
    assert "VolumeFailedDelete 5m ago, 4 times: disk is busy" in ended.text
    assert ended.json["fields"]["provisioning"]["runs"] is False


@pytest.mark.parametrize("is_being_deleted", [False, True])
def test_a_volume_whose_driver_fails_to_delete_it_points_to_the_drivers_error(*, is_being_deleted: bool):
    error = "rpc error: code = Internal desc = disk is busy"

    async def build(cluster: Cluster) -> None:
        volume = await cluster.volume_of(GONE, **DELETE, **PROVISIONED)
        await cluster.event(volume, PERSISTENT_VOLUME, "VolumeFailedDelete", error, count=12)
        if is_being_deleted:
            await deleted(cluster, volume, state.PV_PROTECTION)

    ended = explain(build)
    assert ended.state == "DeletionFails"
    assert f"the provisioner of {DRIVER} tries to delete its volume, and fails." in ended.text
    assert "There is no CSIDriver" not in ended.text
    assert ended.next.startswith(f"Remove the cause of the driver's error: {error}. ")


def test_a_static_local_volume_waits_for_the_one_that_created_it():
    async def build(cluster: Cluster) -> None:
        metadata = {"annotations": {state.PROVISIONED_BY: "local-volume.example.com"}}
        await cluster.volume_of(GONE, **DELETE, **LOCAL, metadata=metadata)

    assert "local-volume.example.com, which provisioned it, has to delete it" in explain(build).text


def test_a_volume_without_a_driver_names_the_provisioner_that_made_it():
    async def build(cluster: Cluster) -> None:
        made_by = {"annotations": {state.PROVISIONED_BY: "local-volume-provisioner-n1"}}
        await cluster.volume(source={"local": {"path": "/mnt/disk1"}}, metadata=made_by, nodeAffinity=ON_N1)

    assert "without a StorageClass, made by local-volume-provisioner-n1, with the reclaim" in explain(build).text


def test_a_failed_volume_that_nobody_can_delete_says_how_to_delete_it_by_hand():
    async def build(cluster: Cluster) -> None:
        message = 'error getting deleter volume plugin for volume "pv1": no volume plugin matched'
        await cluster.volume_of(GONE, **{**DELETE, "phase": "Failed"}, **LOCAL, message=message)

    ended = explain(build)
    assert ended.state == "NobodyDeletes"
    assert "Failed for 5m: its claim team/data is gone" in ended.text
    assert "no volume plugin matched" in ended.text
    assert "kubectl delete persistentvolume pv1" in ended.next


# ---- being deleted ---------------------------------------------------------------------------------------------------


async def deleted(cluster: Cluster, volume: dict[str, Any], *removed: str) -> None:
    await cluster.delete(PERSISTENT_VOLUME, volume)
    for finalizer in removed:
        await cluster.without_finalizer(PERSISTENT_VOLUME, volume, finalizer)


def test_a_bound_volume_that_is_being_deleted_waits_for_its_claim():
    async def build(cluster: Cluster) -> None:
        await deleted(cluster, await cluster.volume_of(await cluster.bound_claim()))

    ended = explain(build)
    assert ended.state == "BeingDeleted"
    assert "Being deleted for 5m: it is kept while its claim team/data exists" in ended.text
    assert "kubectl delete persistentvolumeclaim data -n team" in ended.next


def test_a_volume_that_is_being_deleted_while_attached_names_the_attachment():
    async def build(cluster: Cluster) -> None:
        volume = await cluster.volume_of(GONE, **DELETE, metadata={"finalizers": [finalizer_of(DRIVER)]})
        await cluster.attachment()
        await deleted(cluster, volume, state.PV_PROTECTION)

    ended = explain(build)
    assert "it is kept while it is attached" in ended.text
    assert "csi-1 on the node n1" in ended.text


def test_a_volume_that_is_being_deleted_waits_for_the_provisioner_to_delete_its_storage():
    async def build(cluster: Cluster) -> None:
        await deleted(cluster, await cluster.volume_of(GONE, **DELETE, **PROVISIONED), state.PV_PROTECTION)

    assert "the provisioner of disks.example.com has to delete its volume" in explain(build).text


def test_a_volume_that_is_deleted_before_it_was_released_is_never_deleted_by_its_provisioner():
    async def build(cluster: Cluster) -> None:
        volume = await cluster.volume(persistentVolumeReclaimPolicy="Delete", **PROVISIONED)
        await deleted(cluster, volume, state.PV_PROTECTION)

    ended = explain(build)
    assert "a provisioner deletes only volumes that are Released; this one is Available" in ended.text
    assert '"persistentVolumeReclaimPolicy":"Retain"' in ended.next


def test_a_retained_volume_that_is_being_deleted_waits_for_the_provisioners_finalizer():
    async def build(cluster: Cluster) -> None:
        await deleted(cluster, await cluster.volume_of(GONE, phase="Released", **PROVISIONED), state.PV_PROTECTION)

    assert f"its policy is Retain, so its provisioner removes the finalizer {FINALIZER}" in explain(build).text


def test_a_volume_that_another_finalizer_keeps_names_it():
    async def build(cluster: Cluster) -> None:
        volume = await cluster.volume(metadata={"finalizers": ["orlop.dev/wipe"]})
        await deleted(cluster, volume, state.PV_PROTECTION)

    assert "the finalizer orlop.dev/wipe keeps it" in explain(build).text


# ---- rights, names ---------------------------------------------------------------------------------------------------


def test_what_may_not_be_read_is_unknown_and_not_missing():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(await cluster.bound_claim(), nodeAffinity=ON_N1)
        await let_tenant_read(cluster, "persistentvolumes")

    ended = explain(build, user=TENANT)
    assert ended.state == "Bound"
    assert "the PersistentVolumeClaim data may not be read with these credentials" in ended.text
    assert "On which nodes it can be used is unknown" in ended.text
    assert " gone" not in ended.text


def test_whether_a_released_volume_is_attached_is_unknown_where_attachments_may_not_be_read():
    async def build(cluster: Cluster) -> None:
        await cluster.volume_of(GONE, **DELETE, **PROVISIONED)
        await let_tenant_read(cluster, "persistentvolumes", "persistentvolumeclaims")

    ended = explain(build, user=TENANT)
    assert ended.state == "WaitsForDeletion"
    assert "the list of volumeattachments may not be read with these credentials" in ended.text


def test_an_available_volume_where_claims_may_not_be_listed_says_so():
    async def build(cluster: Cluster) -> None:
        await cluster.volume()
        await let_tenant_read(cluster, "persistentvolumes")

    assert "Which claims wait is unknown" in explain(build, user=TENANT).text


def test_a_volume_that_does_not_exist_has_the_exit_code_for_that():
    async def build(cluster: Cluster) -> None:
        await cluster.volume("other")

    ended = explained("pv", "pv1", build)
    hint = "`kubectl get persistentvolumes` lists those that exist."
    assert (ended.code, ended.errors) == (3, f"There is no PersistentVolume pv1. {hint}\n")


@pytest.mark.parametrize("kind", ["pv", "persistentvolume", "persistentvolumes"])
@pytest.mark.parametrize("name", ["pv1", "persistentvolume/pv1"])
def test_a_volume_may_be_named_as_kubectl_prints_it(kind: str, name: str):
    async def build(cluster: Cluster) -> None:
        await cluster.volume()

    assert explained(kind, name, build).text.startswith("The PersistentVolume pv1 has 10Gi, without a StorageClass")
