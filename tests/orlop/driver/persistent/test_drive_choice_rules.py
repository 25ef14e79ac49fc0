"""The seed's nine steps of the choice of a drive. Tests of its diagram name the edge they prove."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import InvalidArgument
from orlop.driver.persistent.drive_choice_rules import (
    Chosen,
    DriveFacts,
    DrivePlacement,
    HeldByDrive,
    NoDrive,
    NoSuchSize,
    Offer,
    capacity_of,
    choose_drive,
    placement_on,
    volume_bytes,
)
from orlop.driver.persistent.volume_request_rules import SizeRange, WantedStorage, WantedTopology, wanted_volume
from orlop.records.drive_record import DriveState
from orlop.records.volume_context import TOPOLOGY_NODE
from support.drives.drive_facts import GIB, IMAGES, MIB, QUOTA, block, creation, drive, mount, wanted

OTHER_CLAIM_ID = "6355041d-f9c6-4bd6-9335-f2bccbe73929"


def chosen(*drives: DriveFacts, **options: Any) -> str:
    answer = choose_drive(wanted(**options), drives)
    assert isinstance(answer, Chosen), answer
    return answer.drive.name


def refused(*drives: DriveFacts, **options: Any) -> str:
    answer = choose_drive(wanted(**options), drives)
    assert isinstance(answer, NoDrive), answer
    return answer.why


# ---- the diagram, edge by edge ---------------------------------------------------------------------------------------


def test_edge_is_the_request_valid_no_return_error():
    with pytest.raises(InvalidArgument, match="btrfs"):
        wanted_volume(creation(capability=mount("btrfs")))


@pytest.mark.parametrize("key", ["Orlop.dev/Access-Tier", "orlop.dev/acces-tier", "Access-Tier"])
def test_a_misspelled_key_places_a_volume_on_no_drive(key: str):
    request = creation()
    request.parameters[key] = "hot"
    with pytest.raises(InvalidArgument, match=key):
        wanted_volume(request)


def test_edge_is_the_request_valid_yes_loop_each_drive():
    assert chosen(drive("d1", capacity=GIB - MIB), drive("d2", capacity=GIB - MIB), drive("d3")) == "d3"


def test_edge_is_the_requested_volume_present_yes_return_this_drive():
    full = drive("d1", capacity=GIB, volumes={"pvc-1": GIB}, state=DriveState.LOST, unschedulable=True)

    answer = choose_drive(wanted("pvc-1", 2 * GIB, requisite=("n2",)), [drive("d2", "n2"), full])

    assert isinstance(answer, HeldByDrive)
    assert (answer.drive, answer.allocation.bytes) == (full, GIB)


def test_edge_is_the_requested_volume_present_no_match_by_capacity():
    assert chosen(drive("d1", volumes={"pvc-2": 9 * GIB}), size=GIB) == "d1"


def test_edge_match_by_capacity_no_next_drive():
    assert chosen(drive("d1", volumes={"pvc-2": 9 * GIB + MIB}), drive("d2", capacity=GIB), size=GIB) == "d2"


def test_edge_match_by_capacity_yes_match_by_tier():
    assert "is of another tier" in refused(drive("d1", tier="cold"), access_tier="hot")


def test_edge_match_by_tier_no_next_drive():
    assert chosen(drive("d1", tier="cold"), drive("d2", tier="hot", capacity=GIB), access_tier="HOT") == "d2"


def test_edge_match_by_tier_yes_match_by_topology():
    why = refused(drive("d1", "n1", tier="hot"), access_tier="hot", requisite=("n2",))

    assert "is on a node that the request does not allow" in why


def test_edge_no_tier_requested_any_tier_matches():
    assert chosen(drive("d1", tier="cold")) == "d1"


def test_edge_match_by_topology_no_next_drive():
    assert chosen(drive("d1", "n1"), drive("d2", "n2", capacity=GIB), requisite=("n2", "n3")) == "d2"


def test_edge_match_by_topology_yes_append_to_matched_drives():
    assert chosen(drive("d1", "n1"), drive("d2", "n2", capacity=GIB), requisite=("n1", "n2"), preferred=("n2",)) == "d2"


def test_edge_is_no_drive_matched_yes_return_error():
    drives = [
        drive("d1", state=DriveState.LOST),
        drive("d2", unschedulable=True),
        drive("d3", capacity=2 * GIB, tier="hot"),
        drive("d4", capacity=3 * GIB, tier="hot"),
        drive("d5", capacity=8 * GIB, tier="cold"),
        drive("d6", "n6", capacity=8 * GIB, tier="hot"),
    ]

    assert refused(*drives, size=5 * GIB, access_tier="hot", requisite=("n1",)) == (
        "no drive can take 5Gi: of 6 drives, 1 is not Ready, 1 is cordoned, 1 is of another tier, "
        "1 is on a node that the request does not allow, 2 have too little free space (the most is 3Gi)"
    )


def test_the_most_free_space_is_that_of_a_drive_that_fails_no_other_test():
    drives = [
        drive("d1", volumes={"x": 8 * GIB}, tier="cold"),
        drive("d2", "n9", volumes={"x": 8 * GIB}, tier="hot"),
        drive("d3", volumes={"x": 9 * GIB}, tier="hot"),
        drive("d4", volumes={"x": 8 * GIB}, tier="warm"),
    ]

    assert refused(*drives, size=5 * GIB // 2, access_tier="hot", requisite=("n1",)) == (
        "no drive can take 2560Mi: of 4 drives, 2 are of another tier, 1 is on a node that the request does not allow, "
        "1 has too little free space (the most is 1Gi)"
    )


def test_edge_is_more_than_one_drive_matched_no_return_the_first_drive():
    assert chosen(drive("d1")) == "d1"


def test_edge_is_more_than_one_drive_matched_yes_filter_by_maximum_free_capacity():
    assert chosen(drive("d1"), drive("d2", capacity=20 * GIB, volumes={"x": 9 * GIB}), drive("d3")) == "d2"


def test_edge_is_more_than_one_drive_of_maximum_free_capacity_no_return_the_first_drive():
    assert chosen(drive("d1"), drive("d2", capacity=11 * GIB)) == "d2"


def test_edge_is_more_than_one_drive_of_maximum_free_capacity_yes_select_one_that_looks_random():
    drives = [drive(f"d{number}") for number in range(4)]
    picked = [chosen(*drives, name=f"pvc-{number}") for number in range(400)]

    assert {name: 60 < picked.count(name) < 140 for name in set(picked)} == dict.fromkeys(
        ["d0", "d1", "d2", "d3"], True
    )
    assert picked == [chosen(*reversed(drives), name=f"pvc-{number}") for number in range(400)]


# ---- the other tests of step 3 ---------------------------------------------------------------------------------------

OUT = [
    (drive(state=DriveState.ERROR), "is not Ready"),
    (drive(state=None), "is not Ready"),
    (drive(restored=False), "is not Ready"),
    (drive(unschedulable=True), "is cordoned"),
    (drive(removing=True), "is being removed"),
    (drive(volumes={f"v{number}": 1 for number in range(2048)}), "holds 2048 volumes, the most"),
    (drive(labels={"rack": "b"}), "does not match the drive selector"),
    (drive(labels={"rack": "a"}, claim_ids=frozenset({OTHER_CLAIM_ID})), "same volume-claim-id"),
    (drive(offer=IMAGES), "cannot hold the backing"),
]


@pytest.mark.parametrize(("out", "why"), OUT, ids=[why for _, why in OUT])
def test_a_drive_that_fails_one_test_is_out(out: DriveFacts, why: str):
    asked = {"backing": "directory", "drive_selector": "rack in (a)", "volume_claim_id": OTHER_CLAIM_ID.upper()}
    fits = drive("d2", capacity=2 * GIB, labels={"rack": "a"})

    assert why in refused(out, **asked)
    assert chosen(out, fits, **asked) == "d2"


def test_the_first_preferred_topology_with_a_fitting_drive_wins_over_free_space():
    drives = [drive("d1", "n1", capacity=GIB // 2), drive("d2", "n2", capacity=2 * GIB), drive("d3", "n3")]
    order = ("n1", "n2", "n3")

    assert chosen(*drives, requisite=order, preferred=order) == "d2"


def test_drives_of_a_requisite_topology_alone_come_last():
    drives = [drive("d1", "n1", capacity=20 * GIB), drive("d2", "n2", capacity=2 * GIB)]

    assert chosen(*drives, requisite=("n1", "n2"), preferred=("n2",)) == "d2"
    assert chosen(*drives, requisite=("n1", "n2"), preferred=("n2",), size=3 * GIB) == "d1"


def test_a_topology_with_a_key_that_no_drive_has_matches_none():
    topology = WantedTopology(requisite=({TOPOLOGY_NODE: "n1", "zone": "a"},))

    assert capacity_of(WantedStorage(), topology, [drive()]).available == 0


def test_an_empty_requisite_topology_allows_every_node():
    assert capacity_of(WantedStorage(), WantedTopology(requisite=({},)), [drive()]).available == 10 * GIB


# ---- errors ----------------------------------------------------------------------------------------------------------


def test_more_than_any_drive_has_is_out_of_range_also_if_the_largest_is_lost():
    drives = [drive("d1"), drive("d2", capacity=20 * GIB, state=DriveState.LOST)]

    assert choose_drive(wanted(size=21 * GIB), drives) == NoSuchSize(
        "21Gi is more than any drive has: the largest has 20Gi"
    )
    assert isinstance(choose_drive(wanted(size=20 * GIB), drives), NoDrive)


def test_without_drives_the_error_says_how_to_make_one():
    assert "orlop drives init" in refused()


def test_a_drive_that_has_not_reported_its_capacity_could_serve_any_size():
    assert "is not Ready" in refused(drive(capacity=0, state=None), size=1 << 50)


def test_a_drive_whose_forged_allocations_exceed_64_bits_has_too_little_free_space():
    assert refused(drive("d1", free=-(2**64))) == (
        "no drive can take 1Gi: of 1 drive, 1 has too little free space (the most is 0)"
    )


def test_an_xfs_image_within_a_limit_below_its_minimum_is_out_of_range():
    request = wanted(size=MIB, limit=100 * MIB, capability=mount("xfs"), backing="image")

    assert isinstance(choose_drive(request, [drive()]), NoSuchSize)


def test_a_directory_with_ext4_is_possible_on_other_drives_than_those_that_are_there():
    asked = {"capability": mount("ext4"), "backing": "directory"}
    ext4 = Offer("ext4", ("directory", "image"))

    assert refused(drive(), **asked) == (
        "no drive can take 1Gi: of 1 drive, 1 cannot hold the backing and file system asked for"
    )
    assert "too little free space" in refused(drive(offer=ext4, volumes={"x": 10 * GIB}), **asked)
    assert chosen(drive(offer=ext4), **asked) == "d1"
    assert "cannot hold" in refused(drive(), size=MIB, limit=8 * MIB, capability=mount("ext4"))


# ---- what the volume will be -----------------------------------------------------------------------------------------

PLACEMENTS: list[tuple[dict[str, Any], Offer, DrivePlacement | None]] = [
    ({}, QUOTA, DrivePlacement("directory", "xfs", GIB)),
    ({"capability": mount("xfs")}, QUOTA, DrivePlacement("directory", "xfs", GIB)),
    ({"capability": mount("ext4")}, QUOTA, DrivePlacement("image", "ext4", GIB)),
    ({"capability": mount("ext4"), "backing": "directory"}, QUOTA, None),
    ({"backing": "image"}, QUOTA, DrivePlacement("image", "xfs", GIB)),
    ({"backing": "directory"}, IMAGES, None),
    ({}, IMAGES, DrivePlacement("image", "xfs", GIB)),
    ({"size": 100 * MIB}, IMAGES, DrivePlacement("image", "ext4", 100 * MIB)),
    ({"size": 100 * MIB, "capability": mount("xfs")}, IMAGES, DrivePlacement("image", "xfs", 300 * MIB)),
    ({"size": 100 * MIB, "capability": mount("xfs")}, QUOTA, DrivePlacement("directory", "xfs", 100 * MIB)),
    ({"capability": block()}, QUOTA, DrivePlacement("image", "", GIB)),
    ({"capability": block()}, Offer("xfs", ("directory",)), None),
]


@pytest.mark.parametrize(("asked", "offer", "placement"), PLACEMENTS)
def test_backing_and_file_system(asked: dict[str, Any], offer: Offer, placement: DrivePlacement | None):
    request = wanted(**asked)

    assert placement_on(request.storage, request.size, offer) == placement


@pytest.mark.parametrize(
    ("size", "least", "whole"),
    [
        (SizeRange(1), 0, MIB),
        (SizeRange(MIB + 1), 0, 2 * MIB),
        (SizeRange(MIB + 1, MIB + 5000), 0, MIB + 4096),
        (SizeRange(MIB + 1, MIB + 2), 0, 0),
        (SizeRange(0), 0, GIB),
        (SizeRange(0, 10 * MIB + 1), 0, 10 * MIB),
        (SizeRange(0, 10 * MIB), 300 * MIB, 0),
        (SizeRange(2**63 - 1), 0, 0),
    ],
)
def test_sizes_are_whole_mebibytes_unless_the_limit_is_tighter(size: SizeRange, least: int, whole: int):
    assert volume_bytes(size, least) == whole


def test_capacity_is_that_of_drives_that_would_take_a_volume():
    drives = [
        drive("d1", volumes={"v": GIB}),
        drive("d2", "n2", capacity=4 * GIB),
        drive("d3", state=DriveState.LOST),
        drive("d4", capacity=200 * MIB),
    ]
    xfs = WantedStorage(file_system="xfs", backing="image")

    everywhere = capacity_of(xfs, WantedTopology(), drives)
    on_n2 = capacity_of(xfs, WantedTopology(({TOPOLOGY_NODE: "n2"},)), drives)
    assert (everywhere.available, everywhere.largest) == (13 * GIB, 9 * GIB)
    assert (on_n2.available, on_n2.largest) == (4 * GIB, 4 * GIB)


# ---- for all drives and requests -------------------------------------------------------------------------------------

NODES = ("n1", "n2", "n3")
DRIVES = st.builds(
    drive,
    name=st.integers(0, 10**6).map("d{}".format),
    node=st.sampled_from(NODES),
    capacity=st.integers(0, 8).map(lambda count: count * 512 * MIB),
    volumes=st.dictionaries(st.sampled_from(["pvc-2", "pvc-3", "pvc-4"]), st.integers(1, 4 * GIB)),
    state=st.sampled_from((DriveState.READY, DriveState.READY, DriveState.LOST, None)),
    restored=st.sampled_from((True, True, False)),
    unschedulable=st.sampled_from((False, False, True)),
    removing=st.sampled_from((False, False, True)),
    tier=st.sampled_from(("default", "hot")),
    offer=st.sampled_from((QUOTA, IMAGES)),
)
FLEETS = st.lists(DRIVES, max_size=12, unique_by=lambda each: each.name)
REQUESTS = st.builds(
    wanted,
    name=st.integers(0, 50).map("new-{}".format),
    size=st.integers(0, 4 * GIB),
    capability=st.sampled_from((mount(), mount("xfs"), mount("ext4"), block())),
    requisite=st.lists(st.sampled_from(NODES), unique=True).map(tuple),
    preferred=st.lists(st.sampled_from(NODES), unique=True).map(tuple),
)


@given(FLEETS, REQUESTS, st.integers())
def test_the_answer_does_not_depend_on_the_order_of_the_list_and_repeats(fleet: Any, request: Any, seed: int):
    shuffled = list(fleet)
    Random(seed).shuffle(shuffled)

    assert choose_drive(request, fleet) == choose_drive(request, shuffled)


@given(FLEETS, REQUESTS)
def test_a_chosen_drive_has_room_and_passes_every_test(fleet: Any, request: Any):
    answer = choose_drive(request, fleet)

    if isinstance(answer, Chosen):
        drive_, placement = answer.drive, answer.placement
        assert sum(each.bytes for each in drive_.allocations.values()) + placement.bytes <= drive_.capacity
        assert request.size.holds(placement.bytes)
        assert (drive_.state, drive_.restored) == (DriveState.READY, True)
        assert not drive_.unschedulable
        assert not drive_.removing
        assert not request.topology.requisite or drive_.segments in request.topology.requisite


@given(FLEETS, REQUESTS)
def test_a_drive_is_chosen_if_one_alone_would_be(fleet: Any, request: Any):
    alone = [each for each in fleet if isinstance(choose_drive(request, [each]), Chosen)]

    answer = choose_drive(request, fleet)

    assert isinstance(answer, Chosen) == bool(alone)
    assert isinstance(answer, NoDrive | NoSuchSize) or answer.drive in alone
