"""The disks of a node that become PersistentVolumes, and the wiping of released ones. Pure.

The worker of the node creates the object and writes `status` alone. The master writes `spec.deleteOperations` alone: it
adds and removes operations and never changes one. Nothing here is a path: both sides find a disk by class and entry in
their own configuration.

An absent `status.localVolumes` means that the worker has not looked yet; an empty one that the node has no disks. An
operation without an entry in `status.deleteStatuses` is Requested.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from orlop.kube.kinds import STATUS, Kind
from orlop.records.api_record import (
    CATEGORIES,
    GROUP,
    LONGEST_NAME,
    LONGEST_TEXT,
    NEVER_CHANGES,
    QUANTITY,
    VERSION,
    ApiRecord,
    Conditions,
    byte_count,
    described,
)
from orlop.records.drive import NodeName, VolumeMode

PROVISIONER_STATUS: Final = Kind(
    *(GROUP, VERSION, "ProvisionerStatus", "provisionerstatuses"),
    namespaced=True,
    short_names=("opst",),
    categories=CATEGORIES,
    subresources=(STATUS,),
)
CONFIGURATION_VALID: Final = "ConfigurationValid"
"""Condition: the configuration files could be read. While false, the worker uses the ones before."""
DISCOVERED: Final = "Discovered"
"""Condition: every class folder could be read in the last pass."""
MOST_DISKS: Final = 2048
MOST_PROBLEMS: Final = 256
LONGEST_ENTRY_TEXT: Final = 255
ENTRY_RULE: Final = {
    "rule": "self != '.' && self != '..' && !self.contains('/')",
    "message": "must be the name of a file, and no path",
}

DeleteState = Literal["InProgress", "Complete", "Error"]

VolumeUID = Annotated[str, described("UID of the PersistentVolume.", min_length=1, max_length=64)]
StaticName = Annotated[
    str,
    described(
        "Name that the PersistentVolume of the disk has, computed of entry, node and class.",
        pattern="^local-pv-[0-9a-f]{1,8}$",
        max_length=63,
    ),
]
ClassName = Annotated[str, described("StorageClass.", min_length=1, max_length=LONGEST_NAME)]
EntryName = Annotated[
    str,
    described(
        "Name of the file in the folder of the class.", min_length=1, max_length=LONGEST_ENTRY_TEXT, rules=(ENTRY_RULE,)
    ),
]
DiskIdentity = Annotated[
    str,
    described("What the disk is recognized by, such as wwn:… or fs:…; empty: unknown.", max_length=LONGEST_NAME),
]
TimeText = Annotated[str, described("A point in time.", format_="date-time", max_length=64)]


class DeleteOperation(ApiRecord, frozen=True):
    """A request of the master to wipe the disk of one PersistentVolume."""

    uid: VolumeUID
    persistent_volume: Annotated[str, described("PersistentVolume.", min_length=1, max_length=LONGEST_NAME)]
    volume: StaticName
    storage_class: ClassName
    entry: EntryName
    identity: DiskIdentity = ""


class ProvisionerSpec(ApiRecord, frozen=True):
    """Which node it is, and what the master requests."""

    node_name: NodeName
    delete_operations: Annotated[
        tuple[
            Annotated[
                DeleteOperation,
                described("Request to wipe one disk; never changed.", rules=(NEVER_CHANGES,)),
            ],
            ...,
        ],
        described(
            "Disks to wipe. Written by the master alone, which adds and removes them.",
            default=[],
            keys=("uid",),
            max_length=MOST_DISKS,
        ),
    ] = ()


class LocalVolume(ApiRecord, frozen=True):
    """A disk that can become a PersistentVolume, or is one."""

    name: StaticName
    storage_class: ClassName
    entry: EntryName
    capacity_bytes: Annotated[int, byte_count("Bytes, rounded down as in the PersistentVolume.")]
    capacity: Annotated[str, described("Bytes, as a quantity.", pattern=QUANTITY, max_length=32)]
    volume_mode: Annotated[VolumeMode, described("Whether pods see a file system or a block device.")]
    device: Annotated[bool, described("Whether the entry is a block device, and not a mounted folder.")] = False
    file_system: Annotated[str, described("Type of the mounted file system.", max_length=LONGEST_NAME)] = ""
    identity: DiskIdentity = ""


class DeleteStatus(ApiRecord, frozen=True):
    """How far the wiping of one disk is."""

    uid: VolumeUID
    state: Annotated[
        DeleteState,
        described("InProgress: it is being wiped. Complete: it is clean. Error: the last attempt failed; see message."),
    ]
    progress: Annotated[int, described("Percentage that is done.", ge=0, le=100, format_="int32")] = 0
    bytes_done: Annotated[int, byte_count("Bytes written so far, over all passes.")] = 0
    bytes_total: Annotated[int, byte_count("Bytes to be written, over all passes; 0: unknown.")] = 0
    method: Annotated[
        str, described("How the disk is wiped; bytesDone counts only for this method.", max_length=LONGEST_TEXT)
    ] = ""
    identity: DiskIdentity = ""
    attempts: Annotated[int, described("Attempts so far.", ge=0, format_="int32")] = 0
    start_time: Annotated[TimeText, described("When the first attempt began.")] = ""
    end_time: Annotated[TimeText, described("When it was complete.")] = ""
    next_attempt_time: Annotated[TimeText, described("When the next attempt begins, after an error.")] = ""
    message: Annotated[str, described("What is being done, or what failed.", max_length=LONGEST_TEXT)] = ""


class DiskProblem(ApiRecord, frozen=True):
    """An entry of a class folder that is not offered, or a folder that cannot be read."""

    storage_class: ClassName
    reason: Annotated[str, described("Why, as one word in CamelCase.", min_length=1, max_length=64)]
    entry: Annotated[
        str, described("Name of the file, quoted where it cannot be printed.", max_length=4 * LONGEST_NAME)
    ] = ""
    message: Annotated[str, described("Why, as a sentence.", max_length=LONGEST_TEXT)] = ""


class ProvisionerStatusStatus(ApiRecord, frozen=True):
    """What the worker of the node observes and does."""

    local_volumes: (
        Annotated[
            tuple[LocalVolume, ...],
            described("Disks that were found; absent: unknown.", keys=("name",), max_length=MOST_DISKS),
        ]
        | None
    ) = None
    delete_statuses: Annotated[
        tuple[DeleteStatus, ...],
        described("Operations that were begun, until they have left the spec.", keys=("uid",), max_length=MOST_DISKS),
    ] = ()
    problems: Annotated[
        tuple[DiskProblem, ...], described("What is in the folders and cannot be offered.", max_length=MOST_PROBLEMS)
    ] = ()
    conditions: Conditions = ()
    observed_generation: Annotated[
        int, described("Generation of the spec that this status is about.", ge=0, format_="int64")
    ] = 0
    disks: Annotated[int, described("Number of disks.", ge=0, format_="int32")] = 0
    requested: Annotated[int, described("Number of operations that were not begun yet.", ge=0, format_="int32")] = 0
    wiping: Annotated[int, described("Number of disks that are being wiped.", ge=0, format_="int32")] = 0
    errors: Annotated[int, described("Number of operations whose last attempt failed.", ge=0, format_="int32")] = 0
