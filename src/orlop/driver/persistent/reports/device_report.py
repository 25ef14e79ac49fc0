"""Describe the block devices of a survey: for the NodeDevices object, and for the Drive objects of disks.

Loop devices over images of our own volumes are left out: they come and go with every pod, and can never be drives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from orlop.host.block.block_devices import FoundDevice
from orlop.host.block.device_rules import BlockDevice
from orlop.host.drive_host import DriveSurvey
from orlop.records.api_record import LONGEST_NAME, LONGEST_PATH, LONGEST_TEXT, rounded_quantity
from orlop.records.drive import DriveDevice
from orlop.records.node_devices import MOST_DEVICES_OF_NODE, NodeDevicesStatus, SeenDevice

MOST_NAMES = 64
MOST_REASONS = 16


def node_devices_status(
    survey: DriveSurvey, foreign: Mapping[str, tuple[str, ...]], drive_paths: Iterable[str]
) -> dict[str, Any]:
    """Return the status of NodeDevices. `foreign` are drives that are not this node's, by id."""
    inside = tuple(f"{path.rstrip('/')}/" for path in drive_paths)
    shown = [each for each in survey.devices if not (inside and each.device.backing_file.startswith(inside))]
    drives = {mounted.major_minor: drive_id for drive_id, mounted in survey.mounted.items()}
    devices = tuple(
        _seen_device(each, survey, foreign, drives.get(each.device.major_minor, ""))
        for each in shown[:MOST_DEVICES_OF_NODE]
    )
    counts = {
        "count": len(devices),
        "usable": sum(not device.unusable for device in devices),
        "drives": sum(bool(device.drive) and device.drive not in foreign for device in devices),
    }
    return {"devices": [], **msgspec.to_builtins(NodeDevicesStatus(devices=devices)), **counts}


def drive_device(survey: DriveSurvey, drive_id: str) -> DriveDevice | None:
    """Return the device that a drive is mounted from; None if it is gone."""
    mounted = survey.mounted.get(drive_id)
    if mounted is None:
        return None
    device = next((each.device for each in survey.devices if each.device.major_minor == mounted.major_minor), None)
    if device is None:
        return None
    return DriveDevice(
        name=device.name,
        path=device.path,
        size=rounded_quantity(device.bytes),
        model=device.model[:LONGEST_NAME],
        serial=device.serial[:LONGEST_NAME],
        wwn=device.wwn[:LONGEST_NAME],
    )


def _seen_device(
    found_device: FoundDevice, survey: DriveSurvey, foreign: Mapping[str, tuple[str, ...]], mounted_drive: str
) -> SeenDevice:
    device = found_device.device
    signature = device.content.file_system
    drive = mounted_drive or device.content.drive
    reasons = [f"it is the drive {drive}"] if mounted_drive else list(survey.unusable.get(device.name, ()))
    if drive in foreign:
        reasons.append(
            f"it is the drive {drive}, which this node does not use: 'orlop drives adopt' takes it over, and 'orlop "
            "drives init --force' formats it"
        )
    return SeenDevice(
        name=device.name,
        path=device.path[:LONGEST_PATH],
        major_minor=device.major_minor,
        fingerprint=found_device.fingerprint,
        bytes=device.bytes,
        size=rounded_quantity(device.bytes),
        model=device.model[:LONGEST_NAME],
        serial=device.serial[:LONGEST_NAME],
        wwn=device.wwn[:LONGEST_NAME],
        rotational=device.is_rotational,
        file_system=_content(device),
        file_system_uuid=signature.uuid[:LONGEST_NAME] if signature is not None else "",
        label=signature.label[:LONGEST_NAME] if signature is not None else "",
        holders=tuple(each[:LONGEST_NAME] for each in device.holders[:MOST_NAMES]),
        mount_points=tuple(each[:LONGEST_PATH] for each in device.mount_points[:MOST_NAMES]),
        drive=drive,
        unusable=tuple(each[:LONGEST_TEXT] for each in reasons[:MOST_REASONS]),
    )


def _content(device: BlockDevice) -> str:
    in_use = device.mounted_as or ("swap" if device.is_swap else "")
    return (device.content.names or in_use)[:LONGEST_NAME]
