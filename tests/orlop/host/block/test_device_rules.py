from __future__ import annotations

from dataclasses import replace

import pytest

from orlop.host.block.device_rules import (
    BlockDevice,
    DeviceContent,
    DeviceLimits,
    Signature,
    SignatureKind,
    destroyed_content,
    fingerprint_of,
    why_unusable,
)

BLANK = DeviceContent(is_blank=True, digest="0")
DISK = BlockDevice(
    name="sdb", major_minor="8:16", bytes=1 << 40, disk_sequence=7, model="Fast", serial="S1", content=BLANK
)
XFS = Signature(SignatureKind.FILE_SYSTEM, "xfs", "u", "l")
LVM = Signature(SignatureKind.MEMBER, "lvm")
ANYTHING = DeviceLimits()


def holding(*signatures: Signature) -> BlockDevice:
    return replace(DISK, content=DeviceContent(tuple(signatures), digest="x"))


def test_a_blank_disk_that_nothing_uses_can_become_a_drive():
    assert why_unusable(DISK, ANYTHING) == ()
    assert destroyed_content(DISK) == ""


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (replace(DISK, mount_points=("/srv",)), "mounted at /srv"),
        (replace(DISK, partitions=("sdb1", "sdb2")), "partitioned: sdb1, sdb2"),
        (replace(DISK, holders=("dm-0",)), "in use by dm-0"),
        (replace(DISK, is_swap=True), "swap"),
        (replace(DISK, is_read_only=True), "read-only"),
        (replace(DISK, bytes=1 << 20), "too small"),
        (replace(DISK, is_claimed=True), "another mount namespace"),
        (replace(DISK, is_hidden=True), "hides"),
        (replace(DISK, partition_of="sda"), "a partition of sda"),
        (replace(DISK, name="loop3"), "loop device"),
        (replace(DISK, name="zram0"), "memory"),
        (replace(DISK, name="sr0"), "an optical drive"),
        (replace(DISK, name="dm-3"), "device mapper"),
        (replace(DISK, name="dm-3", mapper="LVM-abc-tpool"), "device mapper"),
        (replace(DISK, content=DeviceContent(why_unread="it cannot be read: I/O error")), "cannot be read"),
        (holding(LVM), "a part of a volume group, an array or an encrypted device"),
        (holding(Signature(SignatureKind.TABLE, "gpt")), "a partition table"),
        (holding(Signature(SignatureKind.SWAP, "swap")), "swap space"),
        (holding(XFS, Signature(SignatureKind.FILE_SYSTEM, "btrfs")), "ambiguous"),
    ],
)
def test_a_disk_that_something_uses_or_owns_is_refused_with_the_reason(device: BlockDevice, reason: str):
    assert any(reason in sentence for sentence in why_unusable(device, ANYTHING))


@pytest.mark.parametrize("mapper", ["LVM-abc", "CRYPT-LUKS2-abc", "mpath-36001"])
def test_volumes_of_lvm_encrypted_devices_and_multipath_devices_can_become_drives(mapper: str):
    assert why_unusable(replace(DISK, name="dm-3", mapper=mapper), ANYTHING) == ()


def test_a_loop_device_can_become_a_drive_where_the_admin_allows_it():
    assert why_unusable(replace(DISK, name="loop3"), DeviceLimits(allow_loop_devices=True)) == ()


@pytest.mark.parametrize("pattern", ["sdb", "/dev/sd*", "S1", "Fa*"])
def test_the_admin_s_lists_name_devices_by_any_of_their_names(pattern: str):
    other = replace(DISK, name="nvme0n1", serial="S2", model="Slow")

    assert why_unusable(DISK, DeviceLimits(denied=(pattern,))) == ("--deny-devices of its node denies it",)
    assert why_unusable(other, DeviceLimits(denied=(pattern,))) == ()
    assert why_unusable(DISK, DeviceLimits(allowed=(pattern,))) == ()
    assert why_unusable(other, DeviceLimits(allowed=(pattern,))) == ("--allow-devices of its node does not allow it",)


def test_force_is_needed_for_a_file_system_and_for_unknown_data_and_not_for_a_half_made_drive():
    assert destroyed_content(holding(XFS)) == "xfs"
    assert destroyed_content(holding()) == "unknown data"
    assert destroyed_content(holding(Signature(SignatureKind.OURS, "half"))) == ""
    assert why_unusable(holding(Signature(SignatureKind.OURS, "half")), ANYTHING) == ()


@pytest.mark.parametrize(
    "other",
    [
        replace(DISK, disk_sequence=8),
        replace(DISK, serial="S2"),
        replace(DISK, name="sdc"),
        replace(DISK, bytes=1 << 41),
        replace(DISK, partitions=("sdb1",)),
        replace(DISK, is_read_only=True),
        holding(XFS),
    ],
)
def test_the_fingerprint_changes_with_the_disk_and_with_what_it_holds(other: BlockDevice):
    assert fingerprint_of(other, "boot") != fingerprint_of(DISK, "boot")
    assert fingerprint_of(DISK, "boot") == fingerprint_of(replace(DISK), "boot")


def test_the_fingerprint_of_a_numbered_disk_does_not_outlive_a_restart_of_the_machine():
    without = replace(DISK, disk_sequence=0)

    assert fingerprint_of(DISK, "one") != fingerprint_of(DISK, "other")
    assert fingerprint_of(without, "one") == fingerprint_of(without, "other")
