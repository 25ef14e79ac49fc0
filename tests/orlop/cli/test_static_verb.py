"""`orlop static` as people type it: what is shown, what is asked, what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import NAMESPACE, NODE, PERSISTENT_VOLUME, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteStatus
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    EVER_BOUND,
    RELEASE,
    WIPE,
    WIPE_DECIDED,
    WIPE_FINALIZER,
    new_volume,
    release_note,
)
from support.drives.typed_commands import Bench, bench
from support.static_volumes.static_objects import (
    CONFIGURATION,
    SPACE,
    class_object,
    local_volume,
    node_object,
    report_object,
)
from support.static_volumes.static_views import operation

D1, D2 = local_volume("disk1"), local_volume("disk2")
CLAIM = {"namespace": "team", "name": "data", "uid": "c1"}


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as made:
        made.create(NAMESPACE, {"metadata": {"name": SPACE}})
        made.create(NODE, node_object("n1"))
        made.create(STORAGE_CLASS, class_object())
        made.create(PROVISIONER_STATUS, report_object("n1"))
        report(made)
        yield made


def report(here: Bench, *statuses: DeleteStatus, operations: tuple[Any, ...] = (), problems: Any = ()) -> None:
    name = ObjectName(SPACE, "n1")
    spec = MergePatch({"spec": {"deleteOperations": msgspec.to_builtins(operations)}})
    status = {
        "localVolumes": msgspec.to_builtins((D1, D2)),
        "deleteStatuses": msgspec.to_builtins(statuses),
        "problems": list(problems),
    }
    here.do(lambda client: client.patch(PROVISIONER_STATUS, name, spec))
    here.do(lambda client: client.patch(PROVISIONER_STATUS, name, MergePatch({"status": status}), subresource="status"))


def volume(
    here: Bench, phase: str = "Available", *, deleted: bool = False, release: str = "", **more: Any
) -> dict[str, Any]:
    """Create the volume of disk1. `release`: the note for its deletion; `more`: annotations and fields of its spec."""
    node = here.get(NODE, "n1")
    obj = new_volume(D1, CONFIGURATION.classes[0], node, class_object(), CONFIGURATION)
    obj["metadata"]["annotations"] |= more.pop("annotations", {})
    obj["metadata"]["finalizers"] = [WIPE_FINALIZER]
    obj["spec"] |= more
    made = here.create(PERSISTENT_VOLUME, obj, phase=phase)
    if deleted:
        here.do(lambda client: client.delete(PERSISTENT_VOLUME, ObjectName(None, D1.name)))
    if release:
        note = {"metadata": {"annotations": {RELEASE: release_note(release, deleted_at(here))}}}
        here.do(lambda client: client.patch(PERSISTENT_VOLUME, ObjectName(None, D1.name), MergePatch(note)))
    return made


def deleted_at(here: Bench) -> str:
    return str(stored(here)["metadata"]["deletionTimestamp"])


def released(here: Bench, policy: str = "Retain", **more: Any) -> dict[str, Any]:
    return volume(here, "Released", claimRef=CLAIM, persistentVolumeReclaimPolicy=policy, **more)


def stored(here: Bench) -> dict[str, Any]:
    return here.get(PERSISTENT_VOLUME, D1.name)


# ---- list and show ---------------------------------------------------------------------------------------------------


def test_disks_and_volumes_are_listed_with_what_happens_to_them(here: Bench):
    volume(here, "Bound", claimRef=CLAIM)

    shown = here.typed("static", "list")

    assert shown.code == 0
    assert shown.out.splitlines() == [
        "VOLUME             NODE  CLASS  DISK   SIZE  STATE       CLAIM      WIPE",
        f"{D1.name}  n1    fast   disk1  20Gi  Bound       team/data  -",
        f"{D2.name}  n1    fast   disk2  20Gi  NotOffered  -          -",
    ]
    assert here.typed("static", "list", "--status", "bound", "-o", "name").out == f"{D1.name}\n"
    assert [each["state"] for each in here.typed("static", "list", "-o", "json").json] == ["Bound", "NotOffered"]
    assert here.typed("static", "list", "--node", "n2").err == "No disk matches.\n"


def test_a_wipe_is_shown_with_a_bar_of_its_progress(here: Bench):
    made = released(here, "Delete", deleted=True)
    uid = made["metadata"]["uid"]
    about = (operation(uid, persistent_volume=D1.name, volume=D1.name),)

    report(here, operations=about)
    assert "Requested" in here.typed("static", "list").out

    report(here, DeleteStatus(uid=uid, state="InProgress", progress=45, attempts=1), operations=about)
    assert "Wiping      team/data  [#########...........] 45%" in here.typed("static", "list").out

    failed = DeleteStatus(uid=uid, state="Error", progress=50, attempts=3, message="Input/output error")
    report(here, failed, operations=about)
    shown = here.typed("static", "show", "n1/disk1").out
    assert "State:          WipeFails" in shown
    assert "Message:      Input/output error" in shown
    assert "Attempts:     3" in shown


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"deleted": True}, "Retained"),
        ({"deleted": True, "release": AS_IS}, "Terminating"),
        ({}, "Released"),
    ],
)
def test_a_volume_that_waits_for_an_admin_is_shown_as_such(here: Bench, changes: dict[str, Any], state: str):
    released(here, **changes)

    (found,) = [each for each in here.typed("static", "list", "-o", "json").json if each["name"] == D1.name]
    assert found["state"] == state


def test_what_cannot_be_offered_is_shown_too(here: Bench):
    report(here, problems=[{"storageClass": "fast", "entry": "x", "reason": "NotMounted", "message": "no mount"}])

    shown = here.typed("static", "list")

    assert "NODE  CLASS  ENTRY  PROBLEM     WHY\nn1    fast   x      NotMounted  no mount" in shown.err


def test_a_name_that_means_nothing_or_several_things_is_refused(here: Bench):
    assert here.typed("static", "show", "nothing").code == 3
    several = here.typed("static", "show", "local-pv")
    assert several.code == 2
    assert "means several" in several.err
    volume(here, "Bound", claimRef=CLAIM)
    assert here.typed("static", "show", "team/data", "-o", "json").json["name"] == D1.name


# ---- release ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flag", "how"), [("--wipe", WIPE), ("--as-is", AS_IS)])
def test_a_released_volume_is_deleted_with_what_is_to_happen_to_its_disk(here: Bench, flag: str, how: str):
    released(here)

    done = here.typed("static", "release", D1.name, flag, "--yes")

    assert done.code == 0
    found = stored(here)
    assert found["metadata"]["annotations"][RELEASE] == release_note(how, deleted_at(here))
    assert found["metadata"]["annotations"][EVER_BOUND] == "true"
    assert "deletionTimestamp" in found["metadata"]
    assert here.typed("static", "release", D1.name, flag, "--yes").code == 0


def test_nothing_is_destroyed_without_an_answer(here: Bench):
    released(here)
    before = stored(here)

    asked = here.typed("static", "release", D1.name, "--wipe", answer="n\n")
    assert asked.code == 1
    assert "All data of the disk n1/disk1 will be destroyed. Wipe?" in asked.err
    assert here.typed("static", "release", D1.name, "--wipe").code == 2
    assert here.typed("static", "release", D1.name).code == 2
    tried = here.typed("static", "release", D1.name, "--wipe", "--dry-run")
    assert tried.code == 0
    assert D1.name in tried.out
    assert tried.out.endswith("Dry run: nothing was changed.\n")
    assert stored(here) == before


@pytest.mark.parametrize(
    ("flag", "phase", "changes", "why"),
    [
        ("--wipe", "Bound", {"claimRef": CLAIM}, "the claim team/data has it"),
        ("--as-is", "Bound", {"claimRef": CLAIM}, "the claim team/data has it"),
        ("--wipe", "Available", {}, "no claim has had it"),
        (
            "--as-is",
            "Released",
            {"claimRef": CLAIM, "annotations": {WIPE_DECIDED: "true"}, "deleted": True},
            "its disk is being wiped",
        ),
        (
            "--wipe",
            "Released",
            {"claimRef": CLAIM, "release": AS_IS, "deleted": True},
            "it is being released as it is",
        ),
    ],
)
def test_a_release_that_would_lose_or_leak_data_by_mistake_is_refused(
    here: Bench, flag: str, phase: str, changes: dict[str, Any], why: str
):
    volume(here, phase, **changes)
    before = stored(here)

    refused = here.typed("static", "release", D1.name, flag, "--yes")

    assert refused.code == 1
    assert why in refused.err
    assert stored(here) == before


def test_a_wipe_that_fails_is_given_up(here: Bench):
    made = released(here, "Delete", annotations={WIPE_DECIDED: "true"}, deleted=True)
    uid = made["metadata"]["uid"]
    about = (operation(uid, persistent_volume=D1.name, volume=D1.name),)
    report(here, DeleteStatus(uid=uid, state="Error", message="it hangs"), operations=about)

    assert here.typed("static", "release", D1.name, "--as-is", "--yes").code == 0
    assert stored(here)["metadata"]["annotations"][RELEASE] == release_note(AS_IS, deleted_at(here))


def test_a_disk_without_a_volume_cannot_be_released(here: Bench):
    assert "there is nothing to release" in here.typed("static", "release", "n1/disk2", "--wipe", "--yes").err


# ---- forget and hand-back --------------------------------------------------------------------------------------------


def test_only_a_node_that_is_gone_is_forgotten(here: Bench):
    volume(here, "Bound", claimRef=CLAIM)
    refused = here.typed("static", "forget", "n1", "--yes")
    assert refused.code == 1
    assert "the node exists" in refused.err
    assert here.typed("static", "forget", "n9", "--yes").code == 3

    here.do(lambda client: client.delete(NODE, ObjectName(None, "n1")))
    assert here.typed("static", "list", "--status", "NodeLost", "-o", "name").out == f"{D1.name}\n"
    done = here.typed("static", "forget", "n1", answer="y\n")

    assert done.code == 0
    assert "Give up the data of 1 disk of n1?" in done.err
    assert "kubectl -n team delete pvc data" in done.err
    assert stored(here)["metadata"]["annotations"][RELEASE] == release_note(AS_IS, deleted_at(here))
    assert "deletionTimestamp" in stored(here)["metadata"]


@pytest.mark.parametrize("option", ["--dry-run", "--yes"])
def test_where_there_is_no_static_volume_nothing_can_be_handed_back(here: Bench, option: str):
    here.do(lambda client: client.delete(PROVISIONER_STATUS, ObjectName(SPACE, "n1")))
    ended = here.typed("static", "hand-back", option)
    assert (ended.code, ended.out, ended.err) == (0, "", "There is no static volume: nothing to hand back.\n")


def test_volumes_are_handed_back_without_our_finalizer_and_otherwise_as_they_are(here: Bench):
    volume(here, "Bound", claimRef=CLAIM)
    before = stored(here)

    assert here.typed("static", "hand-back", "--dry-run").code == 0
    assert stored(here) == before
    done = here.typed("static", "hand-back", "n1", "--yes")

    assert done.code == 0
    assert "1 volume handed back." in done.out
    after = stored(here)
    assert WIPE_FINALIZER not in after["metadata"].get("finalizers", [])
    assert after["spec"] == before["spec"]
    assert here.all(PROVISIONER_STATUS) == []


def test_a_node_whose_disks_are_not_clean_is_not_handed_back(here: Bench):
    made = released(here, "Delete", deleted=True)
    refused = here.typed("static", "hand-back", "--yes")
    assert refused.code == 1
    assert "its disk is not wiped" in refused.err

    report(here, operations=(operation(made["metadata"]["uid"], persistent_volume=D1.name, volume=D1.name),))
    assert "is being wiped" in here.typed("static", "hand-back", "--yes").err
    assert WIPE_FINALIZER in stored(here)["metadata"]["finalizers"]
