"""`orlop adopt` and `orlop drives adopt` as people type them, with nodes that have drives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from orlop.binding import claim_state_rules as state
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, SERVICE_ACCOUNT
from orlop.kube.objects import Object, ObjectName
from orlop.records.drive import ALLOCATIONS_FINALIZER, DRIVE, Allocation
from orlop.records.volume import VOLUME
from orlop.records.volume_context import TOPOLOGY_NODE
from support.drives.adoption_worlds import AdoptionWorld, Disk, on_disk
from support.drives.typed_commands import GIB, Bench, bench, drive_id

D1, D2 = drive_id(1), drive_id(2)


@contextmanager
def world(*disks: Disk) -> Iterator[tuple[Bench, AdoptionWorld]]:
    with bench() as here:
        made = AdoptionWorld(here.server, list(disks))
        here.do(lambda _client: made.begin())
        yield here, made
        here.do(lambda _client: made.end())


def settled(here: Bench, made: AdoptionWorld) -> None:
    here.do(lambda _client: made.settle())


def lost_disk(**volumes: str) -> Disk:
    """A disk of a lost cluster: by name, the claim of each volume."""
    return Disk(D1, "n1", "former", {name: on_disk(name, claim) for name, claim in volumes.items()})


def pv(here: Bench, name: str) -> Object:
    return here.get(PERSISTENT_VOLUME, name)


# ---- after a lost cluster --------------------------------------------------------------------------------------------


def test_a_drive_of_a_lost_cluster_comes_back_with_its_volumes_and_their_claims_reserved():
    with world(lost_disk(v1="data")) as (here, made):
        done = here.typed("adopt", "--yes")
        assert (done.code, done.err.count("failed")) == (0, 0)
        settled(here, made)
        drive, volume = here.get(DRIVE, D1), here.get(VOLUME, "v1")
        assert (drive["spec"]["nodeName"], drive["status"]["state"]) == ("n1", "Ready")
        assert [each["volume"] for each in drive["spec"]["allocations"]] == ["v1"]
        assert drive["status"].get("unrecordedVolumes", []) == []
        assert (volume["spec"]["drive"], volume["spec"]["claim"]) == (D1, {"namespace": "team", "name": "data"})
        assert volume["metadata"].get("annotations", {}) == {}
        made_volume = pv(here, "v1")
        assert made_volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
        assert "uid" not in made_volume["spec"]["claimRef"]
        assert volume_allows_node(made_volume, {TOPOLOGY_NODE: "n1"})
        assert made_volume["spec"]["csi"]["volumeAttributes"]["orlop.dev/drive"] == D1


def test_a_claim_that_lost_its_volume_is_bound_to_it_again():
    with world(lost_disk(v1="data")) as (here, made):
        claim = here.claim("data", volume="v1", phase="Lost", annotations={state.BIND_COMPLETED: "yes"})
        assert here.typed("adopt", "--yes").code == 0
        settled(here, made)
        assert here.get(PERSISTENT_VOLUME_CLAIM, "data", "team")["status"]["phase"] == "Bound"
        assert pv(here, "v1")["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]


def test_a_claim_that_was_made_again_is_bound_by_its_name():
    with world(lost_disk(v1="data")) as (here, made):
        here.claim("data", phase="Pending", spec={"storageClassName": "gold"})
        assert here.typed("adopt", "--yes").code == 0
        settled(here, made)
        assert here.get(PERSISTENT_VOLUME_CLAIM, "data", "team")["spec"]["volumeName"] == "v1"
        assert pv(here, "v1")["spec"]["storageClassName"] == "gold"


def test_without_a_claim_the_persistent_volume_has_the_access_mode_that_the_disk_records():
    volumes = {"v1": on_disk("v1", "data", access_mode="ReadWriteOncePod"), "v2": on_disk("v2", "logs")}
    with world(Disk(D1, "n1", "former", volumes)) as (here, made):
        assert here.typed("adopt", "--yes").code == 0
        settled(here, made)
        assert pv(here, "v1")["spec"]["accessModes"] == ["ReadWriteOncePod"]
        assert pv(here, "v2")["spec"]["accessModes"] == ["ReadWriteOnce"]
        # A claim may ask for its mode long after the adoption.
        here.do(lambda client: client.delete(PERSISTENT_VOLUME, ObjectName(None, "v1")))
        assert here.typed("adopt", "--yes").code == 0
        assert pv(here, "v1")["spec"]["accessModes"] == ["ReadWriteOncePod"]


def test_a_claim_that_has_another_volume_by_now_keeps_it():
    with world(lost_disk(v1="data")) as (here, made):
        here.claim("data", volume="newer", phase="Bound")
        here.persistent_volume("newer")
        done = here.typed("adopt", "--yes")
        assert "the claim team/data has another volume, newer" in done.err
        settled(here, made)
        assert here.get(PERSISTENT_VOLUME_CLAIM, "data", "team")["spec"]["volumeName"] == "newer"


def test_drives_are_adopted_alone_and_their_volumes_wait_in_the_drives_status():
    with world(lost_disk(v1="data", v2="logs")) as (here, made):
        done = here.typed("drives", "adopt")
        assert done.code == 0
        assert f"(drive {D1})" in done.out
        settled(here, made)
        reported = here.get(DRIVE, D1)["status"]["unrecordedVolumes"]
        assert [each["volume"] for each in reported] == ["v1", "v2"]
        assert here.all(VOLUME) == []
        plan = here.typed("adopt", "--dry-run", "-o", "json").json
        assert [(each["volume"], each["volumeObject"], each["persistentVolume"]) for each in plan] == [
            ("v1", "make", "make"),
            ("v2", "make", "make"),
        ]


def test_a_dry_run_writes_nothing_and_shows_what_would_be_made():
    with world(lost_disk(v1="data")) as (here, made):
        dry = here.typed("drives", "adopt", "--dry-run")
        assert "It would be taken over." in dry.out
        settled(here, made)
        assert here.all(DRIVE) == []
        here.typed("drives", "adopt")
        settled(here, made)
        before = [here.all(kind) for kind in (DRIVE, VOLUME, PERSISTENT_VOLUME)]
        shown = here.typed("adopt", "--dry-run")
        assert (shown.code, "reserved for a claim team/data, which does not exist" in shown.out) == (0, True)
        settled(here, made)
        assert [here.all(kind) for kind in (DRIVE, VOLUME, PERSISTENT_VOLUME)] == before


def test_without_consent_no_object_of_a_volume_is_made():
    with world(lost_disk(v1="data")) as (here, _made):
        refused = here.typed("adopt", answer="n\n")
        assert (refused.code, here.all(VOLUME)) == (1, [])
        assert "Nothing was changed." in refused.err


def test_a_second_adoption_finds_nothing_to_do():
    with world(lost_disk(v1="data")) as (here, made):
        here.typed("adopt", "--yes")
        settled(here, made)
        again = here.typed("adopt", "--yes")
        assert (again.code, again.out) == (0, "")
        assert "No volume lacks an object." in again.err


def test_a_volume_whose_claim_nothing_records_is_offered_to_nobody_until_it_is_named():
    with world(lost_disk(v1="")) as (here, made):
        first = here.typed("adopt", "--yes")
        assert first.code == 1
        assert "its claim is unknown: name it with --claim NAMESPACE/NAME" in first.out
        assert here.all(PERSISTENT_VOLUME) == []
        named = here.typed("adopt", "v1", "--claim", "team/data", "--yes")
        assert named.code == 0
        settled(here, made)
        assert pv(here, "v1")["spec"]["claimRef"]["name"] == "data"
        # The node compares the object with the record on the disk before it erases.
        assert "claim" not in here.get(VOLUME, "v1")["spec"]


def test_a_volume_whose_name_another_persistent_volume_has_is_refused():
    with world(lost_disk(v1="data")) as (here, _made):
        here.persistent_volume("v1", handle="somebody-elses")
        refused = here.typed("adopt", "--yes")
        assert refused.code == 1
        assert "the PersistentVolume v1 has its name, and is of another volume" in refused.out


def test_a_reservation_that_the_controller_made_meanwhile_is_replaced_by_the_volume():
    with world(lost_disk(v1="data")) as (here, made):
        here.typed("drives", "adopt")
        settled(here, made)
        here.volume("v1", claim="", spec={"reservation_only": True, "persistent_volume": ""})
        assert here.typed("adopt", "--yes").code == 0
        volume = here.get(VOLUME, "v1")
        assert "reservationOnly" not in volume["spec"] or volume["spec"]["reservationOnly"] is False
        assert volume["spec"]["claim"]["name"] == "data"


def test_a_new_volume_whose_persistent_volume_is_still_to_come_is_left_to_its_provisioner():
    with world(Disk(D1, "n1", "n1", {"v1": on_disk("v1")})) as (here, made):
        settled(here, made)
        here.volume("v1")
        here.claim("data", phase="Pending")
        settled(here, made)
        assert "No volume lacks an object." in here.typed("adopt", "--yes").err
        assert here.all(PERSISTENT_VOLUME) == []


def test_a_volume_that_is_being_erased_does_not_come_back():
    with world(Disk(D1, "n1", "n1", {"v1": on_disk("v1")})) as (here, made):
        settled(here, made)
        here.volume("v1", spec={"erase": True})
        settled(here, made)
        assert here.typed("adopt", "v1", "--yes").code == 1
        assert here.all(PERSISTENT_VOLUME) == []


# ---- a disk that was moved -------------------------------------------------------------------------------------------


def moved_from_n1(here: Bench, made: AdoptionWorld, *, policy: str = "Delete", pod: str = "") -> Object:
    """Put a disk with a bound volume into the other node."""
    settled(here, made)
    claim = here.claim("data", volume="v1", annotations={state.BIND_COMPLETED: "yes"})
    here.volume("v1")
    reference = {"namespace": "team", "name": "data", "uid": claim["metadata"]["uid"]}
    expression = {"key": TOPOLOGY_NODE, "operator": "In", "values": ["n1"]}
    here.persistent_volume(
        "v1",
        persistentVolumeReclaimPolicy=policy,
        claimRef=reference,
        storageClassName="gold",
        mountOptions=["noatime"],
        nodeAffinity={"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
    )
    settled(here, made)
    if pod:
        here.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": "team"}})
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
        spec = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume], "nodeName": "n1"}
        here.create(POD, {"metadata": {"name": pod, "namespace": "team"}, "spec": spec})
    made.disks[0].place = "n2"
    settled(here, made)
    return claim


def own_disk() -> Disk:
    return Disk(D1, "n1", "n1", {"v1": on_disk("v1")})


@pytest.mark.parametrize("policy", ["Delete", "Retain"])
def test_a_moved_disk_is_used_on_its_new_node_by_the_same_claim(policy: str):
    with world(own_disk()) as (here, made):
        claim = moved_from_n1(here, made, policy=policy)
        done = here.typed("adopt", "--yes")
        assert done.code == 0, done.err
        settled(here, made)
        replaced = pv(here, "v1")
        assert here.get(DRIVE, D1)["spec"]["nodeName"] == "n2"
        assert here.get(VOLUME, "v1")["spec"]["nodeName"] == "n2"
        assert volume_allows_node(replaced, {TOPOLOGY_NODE: "n2"})
        assert not volume_allows_node(replaced, {TOPOLOGY_NODE: "n1"})
        assert replaced["spec"]["persistentVolumeReclaimPolicy"] == policy
        assert (replaced["spec"]["storageClassName"], replaced["spec"]["mountOptions"]) == ("gold", ["noatime"])
        assert replaced["spec"]["claimRef"]["uid"] == claim["metadata"]["uid"]
        assert here.get(PERSISTENT_VOLUME_CLAIM, "data", "team")["status"]["phase"] == "Bound"
        assert "orlop.dev/former-reclaim-policy" not in replaced["metadata"].get("annotations", {})


def test_a_moved_disk_is_not_touched_while_a_pod_uses_it():
    with world(own_disk()) as (here, made):
        moved_from_n1(here, made, pod="web-0")
        before = [here.get(DRIVE, D1)["metadata"]["uid"], here.get(VOLUME, "v1"), pv(here, "v1")]
        refused = here.typed("adopt", "--yes")
        assert refused.code == 1
        assert "pods use its volumes: team/web-0. Delete them first" in refused.err
        settled(here, made)
        assert [here.get(DRIVE, D1)["metadata"]["uid"], here.get(VOLUME, "v1"), pv(here, "v1")] == before


def test_a_disk_whose_former_node_may_still_use_it_is_not_taken_over():
    with world(own_disk()) as (here, made):
        made.dead.add("n1")  # it reports the drive as it was
        moved_from_n1(here, made)
        here.do(
            lambda client: client.patch(
                DRIVE, ObjectName(None, D1), MergePatch({"status": {"state": "Ready"}}), subresource="status"
            )
        )
        refused = here.typed("drives", "adopt")
        assert refused.code == 1
        assert "two nodes that use one disk destroy it" in refused.err
        assert "kubectl delete node n1" in refused.err
        here.do(lambda client: client.delete(NODE, ObjectName(None, "n1")))
        assert here.typed("drives", "adopt", "--yes").code == 0


def test_a_dry_run_of_a_move_shows_it_and_writes_nothing():
    with world(own_disk()) as (here, made):
        moved_from_n1(here, made)
        before = [here.all(kind) for kind in (DRIVE, VOLUME, PERSISTENT_VOLUME)]
        shown = here.typed("drives", "adopt", "--dry-run")
        assert f"The drive {D1}" in shown.out
        assert "is now on the node n2" in shown.out
        settled(here, made)
        assert [here.all(kind) for kind in (DRIVE, VOLUME, PERSISTENT_VOLUME)] == before


def test_the_objects_of_a_moved_disk_are_removed_only_after_a_question():
    with world(own_disk()) as (here, made):
        moved_from_n1(here, made)
        refused = here.typed("adopt", answer="n\n")
        assert (refused.code, here.get(DRIVE, D1)["spec"]["nodeName"]) == (1, "n1")


def test_a_drive_that_cannot_be_seen_is_named_with_its_node():
    with world(own_disk()) as (here, _made):
        assert here.typed("drives", "adopt", D1).code == 2
        assert here.typed("drives", "adopt", "--node", "n9").code == 3


def test_the_finalizer_of_a_drive_with_volumes_does_not_keep_its_former_object():
    with world(own_disk()) as (here, made):
        moved_from_n1(here, made)
        listed = [msgspec.to_builtins(Allocation(volume="v1", bytes=GIB))]
        changes: dict[str, Any] = {"metadata": {"finalizers": [ALLOCATIONS_FINALIZER]}, "spec": {"allocations": listed}}
        here.do(lambda client: client.patch(DRIVE, ObjectName(None, D1), MergePatch(changes)))
        assert here.typed("adopt", "--yes").code == 0
        assert here.get(DRIVE, D1)["spec"]["nodeName"] == "n2"
