"""A listed disk gets a PersistentVolume, unless anything of it is on record or it cannot be offered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orlop.records.provisioner_status import DeleteStatus
from orlop.static_pv.configuration import StaticClass
from orlop.static_pv.disk_step_rules import LeaveAlone, OfferDisk, ReportDisk
from orlop.static_pv.master_rules import next_disk_step
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.node_disks_rules import DiskReport, VersionedVolume, is_unique_across_nodes
from support.static_volumes.static_objects import CONFIGURATION, class_object, local_volume, node_object
from support.static_volumes.static_views import (
    BOUND,
    NAME,
    RELEASED,
    disks,
    listing,
    operation,
    report,
    static_volume,
)

BLOCK_CLASS = StaticClass("fast", "/mnt/fast", "/mnt/fast", volume_mode="Block")
PATTERNED = StaticClass("fast", "/mnt/fast", "/mnt/fast", name_pattern="ssd*")
SLOW = StaticClass("slow", "/mnt/fast", "/mnt/fast")
OPERATION = operation("u9", volume="local-pv-9", storage_class="other", entry="y")


def test_a_listed_disk_without_a_volume_is_offered():
    step = next_disk_step(disks(listing()), NAME)

    assert isinstance(step, OfferDisk)
    assert step.volume["metadata"]["name"] == NAME
    assert step.volume["spec"]["local"] == {"path": "/mnt/fast/disk1"}


COMPLETE = DeleteStatus(uid="u1", state="Complete")


@pytest.mark.parametrize(
    ("of_node", "why"),
    [
        (report(volumes=None), "nothing is there"),
        (report(), "nothing is there"),
        (listing(operations=(operation(),)), "its disk is being wiped"),
        (listing(statuses=(COMPLETE,)), "not forgotten yet"),
        (listing(operations=(OPERATION,), statuses=(COMPLETE,)), "not forgotten yet"),
        # The same disk, under another entry.
        (
            report(
                volumes=(local_volume("disk1", identity="wwn:1"),),
                operations=(operation("u2", volume="local-pv-2", entry="disk9", identity="wwn:1"),),
            ),
            "not forgotten yet",
        ),
    ],
)
def test_a_disk_of_which_anything_is_on_record_is_left_alone(of_node: DiskReport, why: str):
    step = next_disk_step(disks(of_node), NAME)

    assert isinstance(step, LeaveAlone)
    assert why in step.reason


def test_a_disk_of_a_missing_node_is_left_alone():
    assert next_disk_step(disks(listing(), node=None), NAME) == LeaveAlone("its node is gone")


def other_volume() -> VersionedVolume:
    return static_volume(name="local-pv-2", storage_class="slow")


@pytest.mark.parametrize(
    ("changes", "reason", "why"),
    [
        ({"configuration": replace(CONFIGURATION, classes=())}, "ClassNotConfigured", "not in the master's"),
        ({"classes": {}}, "StorageClassMissing", "there is no StorageClass"),
        ({"classes": {"fast": class_object(reclaimPolicy="Recycle")}}, "VolumeUnsupportedReclaimPolicy", "Recycle"),
        ({"taken_names": frozenset({NAME})}, "DiskRefused", "another PersistentVolume"),
        ({"volumes": {"local-pv-2": other_volume()}}, "DiskRefused", "the volume local-pv-2 has its path"),
        (
            {"configuration": replace(CONFIGURATION, classes=(BLOCK_CLASS,))},
            "DiskRefused",
            "it is a folder, and the class offers block devices",
        ),
        ({"configuration": replace(CONFIGURATION, classes=(PATTERNED,))}, "DiskRefused", "namePattern"),
        ({"node": {"metadata": {"name": "n1"}}}, "DiskRefused", "has no label kubernetes.io/hostname"),
    ],
)
def test_a_disk_that_cannot_be_offered_is_reported(changes: dict[str, Any], reason: str, why: str):
    step = next_disk_step(disks(listing(), **changes), NAME)

    assert isinstance(step, ReportDisk)
    assert step.reason == reason
    assert why in step.note


USED_DISK = report(volumes=(local_volume("disk1", identity="wwn:1"),))
ELSEWHERE: dict[str, Any] = {"name": "local-pv-2", "entry": "disk9", "path": "/mnt/fast/disk9", "identity": "wwn:1"}


@pytest.mark.parametrize("use", [BOUND, RELEASED, RELEASED | {"is_being_deleted": True}, {"claim": "default/c"}])
def test_the_disk_of_a_used_volume_is_not_offered_under_another_name(use: dict[str, Any]):
    step = next_disk_step(disks(USED_DISK, static_volume(**ELSEWHERE | use)), NAME)

    assert isinstance(step, ReportDisk)
    assert (step.reason, "the disk of the volume local-pv-2" in step.note) == ("DiskRefused", True)


def test_the_disk_of_a_volume_that_was_never_used_may_be_offered_under_another_name():
    assert isinstance(next_disk_step(disks(USED_DISK, static_volume(**ELSEWHERE)), NAME), OfferDisk)


def test_a_disk_of_the_same_identity_as_one_in_its_place_is_offered():
    both = report(volumes=(local_volume("disk1", identity="wwn:1"), local_volume("disk9", identity="wwn:1")))
    in_place = ELSEWHERE | BOUND | {"name": volume_name("disk9", "n1", "fast")}

    assert isinstance(next_disk_step(disks(both, static_volume(**in_place)), NAME), OfferDisk)


def test_the_disk_of_a_used_volume_of_another_node_is_not_offered():
    step = next_disk_step(disks(USED_DISK, moved_here={"wwn:1": "local-pv-8"}), NAME)

    assert isinstance(step, ReportDisk)
    assert "the disk of the volume local-pv-8" in step.note


@pytest.mark.parametrize(
    ("identity", "is_unique"),
    [
        ("wwn:0x5002538d", True),
        ("wwn:0x5002538d-part1@2048", True),
        ("fs:0a1b", True),
        ("fs:0a1b:64", False),
        ("serial:QEMU HARDDISK:drive-scsi1", False),
        ("mapper:vg-data", False),
        ("file:0123", False),
        ("", False),
    ],
)
def test_an_identity_that_two_disks_can_have_does_not_prove_a_move(identity: str, is_unique: bool):  # noqa: FBT001
    assert is_unique_across_nodes(identity) == is_unique


def test_a_path_where_another_volume_s_disk_is_being_wiped_is_not_offered():
    of_slow = operation("u2", volume="local-pv-2", storage_class="slow")
    configuration = replace(CONFIGURATION, classes=(*CONFIGURATION.classes, SLOW))

    step = next_disk_step(disks(listing(operations=(of_slow,)), configuration=configuration), NAME)

    assert isinstance(step, ReportDisk)
    assert "local-pv-2" in step.note


@pytest.mark.parametrize("entry", ["..", ".", "", "../disk1", "a/b", "/etc", "a\nb", "x" * 256])
def test_a_worker_cannot_name_a_path_outside_of_the_folder(entry: str):
    name = volume_name(entry, "n1", "fast")
    listed = local_volume(entry)

    step = next_disk_step(disks(report(volumes=(listed,))), name)

    assert isinstance(step, ReportDisk)
    assert step.reason == "DiskRefused"


def test_a_worker_cannot_choose_the_name_of_a_volume():
    step = next_disk_step(disks(report(volumes=(local_volume("disk1", name="local-pv-1"),))), "local-pv-1")

    assert isinstance(step, ReportDisk)
    assert "its name is not the one that is computed" in step.note


def test_the_node_of_a_volume_is_that_of_the_report():
    step = next_disk_step(disks(listing(), node=node_object("n1", zone="b")), NAME)

    assert isinstance(step, OfferDisk)
    assert step.volume["metadata"]["labels"] == {"zone": "b", "team": "a"}
