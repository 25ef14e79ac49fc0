"""Changes of a drive's spec against the reservations of the controller, in every order."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.admin.drives.drive_change_rules import (
    ChangeDrive,
    LabelChange,
    cordon,
    remove,
    set_labels,
    set_tier,
    uncordon,
)
from orlop.driver.persistent.reservation_rules import read_drive, release, reservation
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch
from orlop.kube.patches import JsonPatch
from orlop.records.drive import Allocation

GIB = 1 << 30
Object = dict[str, Any]


def made() -> Object:
    spec = {"nodeName": "n1", "type": "Disk", "tier": "default", "allocations": []}
    status = {"state": "Ready", "capacityBytes": 4 * GIB, "allocationsRestored": True}
    return {"metadata": {"name": "d1", "uid": "u1", "generation": 1}, "spec": spec, "status": status}


class Server:
    """Applies patches as an API server does: the generation follows the spec. It has no rules of its own."""

    def __init__(self) -> None:
        self.drive = made()

    def patch(self, patch: JsonPatch) -> bool:
        try:
            after = apply_json_patch(deepcopy(self.drive), patch.body())
        except PatchDoesNotApply:
            return False
        if after["spec"] != self.drive["spec"]:
            after["metadata"]["generation"] += 1
        self.drive = after
        return True


def admin(decide: Callable[[Object], Any]) -> Callable[[Object, int], JsonPatch | None]:
    def patch_of(seen: Object, _number: int) -> JsonPatch | None:
        decision = decide(seen)
        return decision.patch if isinstance(decision, ChangeDrive) else None

    return patch_of


def reserve(seen: Object, number: int) -> JsonPatch | None:
    drive = read_drive(seen)
    if drive.removing or drive.unschedulable or drive.free < GIB:
        return None
    return reservation(drive, Allocation(volume=f"v{number}", bytes=GIB))


def give_back(seen: Object, _number: int) -> JsonPatch | None:
    drive = read_drive(seen)
    return release(drive, min(drive.allocations)) if drive.allocations else None


WRITERS: dict[str, Callable[[Object, int], JsonPatch | None]] = {
    "reserve": reserve,
    "release": give_back,
    "remove": admin(remove(())),
    "cordon": admin(cordon),
    "uncordon": admin(uncordon),
    "tier": admin(set_tier("hot")),
    "label": admin(set_labels(LabelChange({"rack": "a"}, ()))),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(WRITERS)), st.integers(0, 6)), max_size=20))
def test_a_reservation_and_a_removal_never_both_succeed_however_old_what_each_has_read(steps: list[tuple[str, int]]):
    server = Server()
    versions = [server.drive]
    for number, (writer, age) in enumerate(steps):
        seen = versions[-1 - min(age, len(versions) - 1)]
        patch = WRITERS[writer](seen, number)
        if patch is not None and server.patch(patch):
            versions.append(server.drive)
        spec = server.drive["spec"]
        assert not (spec.get("removing") and spec["allocations"])
        assert sum(each["bytes"] for each in spec["allocations"]) <= 4 * GIB


@pytest.mark.parametrize("writer", ["remove", "cordon", "tier", "label"])
def test_a_change_fails_on_a_drive_that_was_made_anew_under_its_name(writer: str):
    server = Server()
    patch = WRITERS[writer](server.drive, 1)
    assert patch is not None
    server.drive["metadata"]["uid"] = "u2"
    assert not server.patch(patch)


def test_a_write_of_status_is_in_nobodys_way():
    server = Server()
    patch = WRITERS["remove"](server.drive, 1)
    assert patch is not None
    server.drive["status"]["volumes"] = 1
    assert server.patch(patch)


def test_labels_that_somebody_else_sets_meanwhile_are_not_lost():
    server = Server()
    patch = WRITERS["label"](server.drive, 1)
    assert patch is not None
    server.drive["metadata"]["labels"] = {"other": "b"}
    assert not server.patch(patch)
    again = WRITERS["label"](server.drive, 1)
    assert again is not None
    assert server.patch(again)
    assert server.drive["metadata"]["labels"] == {"other": "b", "rack": "a"}
