"""A drive: a whole disk, or a folder with a stated capacity, that volumes are placed on. Pure.

The node that has it writes `status`. The controller writes `spec.allocations`, which is the one list of what is
reserved: free is the capacity minus their sum, and is never counted otherwise.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from orlop.kube.kinds import STATUS, Kind
from orlop.records.api_record import (
    CATEGORIES,
    DRIVE_ID,
    GROUP,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_TEXT,
    LONGEST_VOLUME_ID,
    MOST_VOLUMES,
    NEVER_CHANGES,
    QUANTITY,
    VERSION,
    VOLUME_ID,
    ApiRecord,
    Conditions,
    byte_count,
    described,
)
from orlop.records.drive_record import DriveState, DriveType

DRIVE: Final = Kind(
    *(GROUP, VERSION, "Drive", "drives"),
    namespaced=False,
    short_names=("odr",),
    categories=CATEGORIES,
    subresources=(STATUS,),
)
ALLOCATIONS_FINALIZER: Final = f"{GROUP}/allocations"
RELEASED: Final = "Released"
"""Condition of a drive that is being removed: nothing on its node uses it any more, and its object can be deleted."""

Tier = Literal["default", "hot", "warm", "cold"]
FileSystem = Literal["xfs", "ext4"]
Backing = Literal["directory", "image"]
VolumeMode = Literal["Filesystem", "Block"]
VolumeAccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod"]
"""Access modes of a volume on a drive. A claim has one of them: Kubernetes refuses both together."""

VolumeID = Annotated[str, described("Name of the volume.", pattern=VOLUME_ID, max_length=LONGEST_VOLUME_ID)]
DriveID = Annotated[str, described("Name of the drive.", pattern=DRIVE_ID, max_length=36)]
NodeName = Annotated[
    str,
    described("Node that the object belongs to.", min_length=1, max_length=LONGEST_NAME, rules=(NEVER_CHANGES,)),
]
VolumeClaimID = Annotated[
    str,
    described(
        "Identifier from the StorageClass parameter orlop.dev/volume-claim-id: at most one volume of it per drive.",
        max_length=36,
    ),
]


class Allocation(ApiRecord, frozen=True):
    """Space of the drive that is reserved for one volume."""

    volume: VolumeID
    bytes: Annotated[int, byte_count("Bytes that are reserved for the volume.", least=1)]
    volume_claim_id: VolumeClaimID = ""


class DriveSpec(ApiRecord, frozen=True):
    """What the drive is, and what is reserved on it."""

    node_name: NodeName
    type: Annotated[
        DriveType,
        described("Disk: a whole block device. Folder: a folder of another file system.", rules=(NEVER_CHANGES,)),
    ]
    tier: Annotated[Tier, described("Access tier that a StorageClass can ask for.", default="default")] = "default"
    unschedulable: Annotated[bool, described("Place no new volume here (`orlop drives cordon`).")] = False
    removing: Annotated[
        bool, described("The drive is being taken out of use; only one without allocations can be.")
    ] = False
    allocations: Annotated[
        tuple[Allocation, ...],
        described(
            "Space reserved for volumes. Written by the controller alone.",
            default=[],
            keys=("volume",),
            max_length=MOST_VOLUMES,
        ),
    ] = ()


class DriveDevice(ApiRecord, frozen=True):
    """The block device of a drive of type Disk, as last seen."""

    name: Annotated[str, described("Name in the kernel, such as sdb.", max_length=LONGEST_NAME)] = ""
    path: Annotated[str, described("Path of the device file.", max_length=LONGEST_PATH)] = ""
    size: Annotated[str, described("Size as a quantity.", pattern=QUANTITY, max_length=32)] = "0"
    model: Annotated[str, described("Vendor and model.", max_length=LONGEST_NAME)] = ""
    serial: Annotated[str, described("Serial number.", max_length=LONGEST_NAME)] = ""
    wwn: Annotated[str, described("World wide name.", max_length=LONGEST_NAME)] = ""


class UnrecordedVolume(ApiRecord, frozen=True):
    """A volume on the drive that has no Volume object, or that `spec.allocations` does not list."""

    volume: VolumeID
    bytes: Annotated[int, byte_count("Size of the volume.")]
    persistent_volume: Annotated[str, described("PersistentVolume it belonged to.", max_length=LONGEST_NAME)] = ""
    claim_namespace: Annotated[str, described("Namespace of its claim.", max_length=LONGEST_NAME)] = ""
    claim_name: Annotated[str, described("Name of its claim.", max_length=LONGEST_NAME)] = ""
    volume_claim_id: VolumeClaimID = ""
    backing: Annotated[Backing | None, described("How the volume is kept on the drive.")] = None
    file_system: Annotated[FileSystem | None, described("File system; absent for a raw block volume.")] = None
    volume_mode: Annotated[VolumeMode | None, described("Whether pods see a file system or a block device.")] = None
    thin: Annotated[bool, described("Whether its image is allocated as it is written.")] = False
    access_mode: Annotated[
        VolumeAccessMode, described("Access mode of its claim; ReadWriteOnce where none was recorded.")
    ] = "ReadWriteOnce"


class DriveStatus(ApiRecord, frozen=True):
    """What the node observes of the drive."""

    state: Annotated[
        DriveState | None,
        described(
            "Ready: volumes can be used. Lost: its device or folder is gone. Error: it is there and cannot be used. "
            "Removing: it is being taken out of use. Repairing: its file system is being checked."
        ),
    ] = None
    capacity: Annotated[
        str, described("Bytes for volumes, as a quantity for people.", pattern=QUANTITY, max_length=32)
    ] = "0"
    capacity_bytes: Annotated[int, byte_count("Bytes for volumes, decided once when the drive was made.")] = 0
    allocated: Annotated[
        str, described("Sum of the allocations, as a quantity for people.", pattern=QUANTITY, max_length=32)
    ] = "0"
    free: Annotated[
        str, described("Capacity less allocations, as a quantity for people.", pattern=QUANTITY, max_length=32)
    ] = "0"
    volumes: Annotated[int, described("Number of volumes on the drive.", ge=0, format_="int32")] = 0
    file_system: Annotated[FileSystem | None, described("File system of the drive.")] = None
    backings: Annotated[
        tuple[Backing, ...],
        described("Backings it offers: directory only where project quota is enforced.", max_length=2),
    ] = ()
    reflink: Annotated[bool, described("Whether files can share blocks, so that images are cloned at once.")] = False
    device: Annotated[DriveDevice | None, described("The block device; absent for a folder.")] = None
    path: Annotated[str, described("The folder of a drive of type Folder.", max_length=LONGEST_PATH)] = ""
    observed_generation: Annotated[
        int, described("Generation of the spec that this status is about.", ge=0, format_="int64")
    ] = 0
    conditions: Conditions = ()
    unrecorded_volumes: Annotated[
        tuple[UnrecordedVolume, ...],
        described(
            "Volumes found on the drive that no Volume object describes (or only one that is a reservation), or that "
            "spec.allocations lacks; normally none. Adoption makes their objects.",
            keys=("volume",),
            max_length=MOST_VOLUMES,
        ),
    ] = ()
    allocations_restored: Annotated[
        bool,
        described(
            "False after this object was made for a drive that has volumes, until its allocations are complete: such "
            "a drive is not Ready."
        ),
    ] = False
    message: Annotated[str, described("Why the state is what it is, as a sentence.", max_length=LONGEST_TEXT)] = ""
