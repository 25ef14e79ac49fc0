"""Patches of allocations, decided on any earlier state of the drive: refused, or right (I2)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.driver.persistent.drive_choice_rules import Chosen, DriveFacts, choose_drive
from orlop.driver.persistent.reservation_rules import (
    PlacedVolume,
    allocation_of,
    growth,
    missing_allocations,
    read_drive,
    read_volume,
    release,
    reservation,
    restoration,
    volume_object,
    volume_to_erase,
)
from orlop.kube.patch_application import PatchDoesNotApply, apply_json_patch
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import part_of
from orlop.records.drive import ALLOCATIONS_FINALIZER, Allocation
from orlop.records.volume import ERASE_FINALIZER, DriveVolumeSpec
from support.drives.drive_facts import GIB, MIB, Mode, mount, wanted
from support.drives.drive_worlds import allocated, drive_id, drive_object, drive_status

CAPACITY = 8 * MIB
Object = dict[str, Any]


def stored_drive(capacity: int = CAPACITY, **status: Any) -> Object:
    drive = drive_object(1)
    drive["metadata"] |= {"uid": "u1", "generation": 1, "resourceVersion": "1"}
    drive["spec"].setdefault("allocations", [])
    return {**drive, "status": drive_status(capacity, **status)}


def patched(drive: Object, patch: JsonPatch) -> Object | None:
    """Return the drive after a patch, as an API server applies it; None if the patch is refused."""
    try:
        after = apply_json_patch(deepcopy(drive), patch.body())
    except PatchDoesNotApply:
        return None
    assert isinstance(after, dict)
    if after["spec"] != drive["spec"]:
        after["metadata"]["generation"] += 1
    after["metadata"]["resourceVersion"] = str(int(drive["metadata"]["resourceVersion"]) + 1)
    return after


def patch_for(kind: str, facts: DriveFacts, name: str, size: int) -> JsonPatch | None:
    held = facts.allocations.get(name)
    if kind == "reserve":
        request = wanted(name, size)
        choice = choose_drive(request, [facts])
        if isinstance(choice, Chosen):
            return reservation(facts, allocation_of(request, choice.placement.bytes))
        return None
    if kind == "grow":
        fits = held is not None and held.bytes < size <= held.bytes + facts.free
        return growth(facts, name, size) if fits else None
    return release(facts, name)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(("reserve", "grow", "release", "status", "cordon")),
        st.sampled_from(("v1", "v2", "v3")),
        st.integers(1, 6),
        st.integers(0, 3),
    ),
    max_size=30,
)


@given(OPERATIONS)
def test_patches_decided_on_earlier_states_never_overcommit_and_keep_the_finalizer(operations: Any) -> None:
    states = [stored_drive()]
    for kind, name, size, behind in operations:
        now, read = states[-1], states[max(0, len(states) - 1 - behind)]
        if kind == "status":
            after = deepcopy(now)
            after["status"]["volumes"] = size
        elif kind == "cordon":
            after = patched(now, JsonPatch().add("spec", "unschedulable", value=size % 2 == 0)) or now
        else:
            patch = patch_for(kind, read_drive(read), name, size * MIB)
            after = (patched(now, patch) or now) if patch is not None else now
        states.append(after)
        volumes = allocated(after)
        assert sum(volumes.values()) <= CAPACITY
        assert len(volumes) == len(after["spec"]["allocations"])
        assert bool(volumes) == (ALLOCATIONS_FINALIZER in after["metadata"].get("finalizers", []))


def test_a_write_of_status_moves_no_guard():
    drive = stored_drive()
    facts = read_drive(drive)
    busy = {**drive, "status": {**drive["status"], "volumes": 3}}

    after = patched(busy, reservation(facts, Allocation(volume="v", bytes=MIB)))

    assert after is not None
    assert allocated(after) == {"v": MIB}


def test_a_drive_made_anew_under_the_name_refuses_what_was_decided_on_the_earlier_one():
    facts = read_drive(stored_drive())
    anew = stored_drive()
    anew["metadata"]["uid"] = "u2"

    assert patched(anew, reservation(facts, Allocation(volume="v", bytes=MIB))) is None


def test_what_a_drive_must_list_is_its_volume_register_and_what_its_node_found():
    found = [{"volume": "on-disk", "bytes": 2 * MIB}, {"volume": "both", "bytes": MIB}]
    facts = read_drive(stored_drive(allocationsRestored=False, unrecordedVolumes=found))
    placed = {name: spec_of(name, 3 * MIB) for name in ("both", "placed")}

    missing = missing_allocations(facts, placed)
    after = patched(stored_drive(), restoration(facts, missing))

    assert after is not None
    assert allocated(after) == {"both": 3 * MIB, "on-disk": 2 * MIB, "placed": 3 * MIB}
    assert after["metadata"]["finalizers"] == [ALLOCATIONS_FINALIZER]
    assert missing_allocations(read_drive(after), placed) == ()


def test_an_allocation_that_was_made_smaller_by_hand_gets_the_size_of_its_volume_again():
    drive = stored_drive()
    drive["spec"]["allocations"] = [{"volume": "large", "bytes": 5 * MIB}, {"volume": "v", "bytes": MIB}]
    facts, placed = read_drive(drive), {"large": spec_of("large", 4 * MIB), "v": spec_of("v", 3 * MIB)}

    after = patched(drive, restoration(facts, missing_allocations(facts, placed)))

    assert after is not None
    assert allocated(after) == {"large": 5 * MIB, "v": 3 * MIB}


def test_a_volume_object_that_names_another_node_takes_no_space_of_the_drive():
    forged = msgspec.structs.replace(spec_of("forged", CAPACITY), node_name="n9")

    assert missing_allocations(read_drive(stored_drive()), {"forged": forged}) == ()


def test_what_a_node_finds_beside_complete_allocations_is_not_restored():
    found = [{"volume": "on-disk", "bytes": 2 * MIB}]

    assert missing_allocations(read_drive(stored_drive(unrecordedVolumes=found)), {}) == ()


def spec_of(name: str, size: int, **options: Any) -> DriveVolumeSpec:
    request = wanted(name, size, **options)
    choice = choose_drive(request, [read_drive(stored_drive(10 * GIB))])
    assert isinstance(choice, Chosen)
    return part_of(volume_object(request, choice.drive, choice.placement), "spec", DriveVolumeSpec)


def facts_of(spec: Object, **status: Any) -> PlacedVolume:
    base = volume_to_erase(read_drive(stored_drive()), Allocation(volume="v", bytes=MIB))
    return read_volume({**base, "spec": {**base["spec"], "erase": False, **spec}, "status": status})


def test_the_volume_of_a_reservation_says_what_was_placed_and_where():
    spec = spec_of("pvc-1", 3 * MIB)

    assert (spec.drive, spec.node_name, spec.bytes, spec.backing) == (drive_id(1), "n1", 3 * MIB, "directory")
    assert not spec.erase


@pytest.mark.parametrize(
    ("mode", "recorded"),
    [
        (Mode.SINGLE_NODE_SINGLE_WRITER, "ReadWriteOncePod"),
        (Mode.SINGLE_NODE_MULTI_WRITER, "ReadWriteOnce"),
        (Mode.SINGLE_NODE_WRITER, "ReadWriteOnce"),
    ],
)
def test_the_volume_of_a_reservation_has_the_access_mode_of_its_claim(mode: Mode, recorded: str):
    assert spec_of("pvc-1", 3 * MIB, capability=mount(mode=mode)).access_mode == recorded


def test_a_volume_to_erase_has_our_finalizer_and_the_size_of_its_allocation():
    made = volume_to_erase(read_drive(stored_drive()), Allocation(volume="v", bytes=5 * MIB))

    assert made["metadata"] == {"name": "v", "finalizers": [ERASE_FINALIZER]}
    assert (made["spec"]["bytes"], made["spec"]["erase"]) == (5 * MIB, True)


def test_erased_counts_only_for_a_volume_whose_erasure_was_asked_for():
    assert not facts_of({}, phase="Erased").is_erased
    assert facts_of({"erase": True}, phase="Erased").is_erased
    assert not facts_of({"erase": True}, phase="Erasing").is_erased
    assert facts_of({"reservationOnly": True}, phase="Erased").is_erased


def test_a_volume_holds_space_until_it_is_erased_and_one_for_a_reservation_never():
    assert facts_of({"erase": True}, phase="Staged").holds_space
    assert not facts_of({"erase": True}, phase="Erased").holds_space
    assert not facts_of({"reservationOnly": True}).holds_space


def test_a_volume_is_in_use_while_its_status_shows_it_staged():
    assert facts_of({}, phase="Staged").is_in_use
    assert facts_of({}, stagedPath="/s").is_in_use
    assert facts_of({}, phase="Pending", published=[{"path": "/p"}]).is_in_use
    assert not facts_of({}, phase="Pending").is_in_use
