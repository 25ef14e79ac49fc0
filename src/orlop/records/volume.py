"""A volume on a drive. The controller writes `spec`, the node of the drive writes `status`. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from orlop.kube.kinds import STATUS, Kind
from orlop.records.api_record import (
    CATEGORIES,
    GROUP,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_TEXT,
    NEVER_CHANGES,
    QUANTITY,
    VERSION,
    ApiRecord,
    Conditions,
    byte_count,
    described,
)
from orlop.records.drive import Backing, DriveID, NodeName, VolumeAccessMode, VolumeClaimID, VolumeMode

VOLUME: Final = Kind(
    *(GROUP, VERSION, "Volume", "volumes"),
    namespaced=False,
    short_names=("ovol",),
    categories=CATEGORIES,
    subresources=(STATUS,),
)
ERASE_FINALIZER: Final = f"{GROUP}/erase"

VolumePhase = Literal["Pending", "Staged", "Published", "Erasing", "Erased", "Lost"]
FileSystemOrNone = Literal["", "xfs", "ext4"]

ONLY_GROWS: Final = {"rule": "self >= oldSelf", "message": "cannot shrink"}
STAYS_TRUE: Final = {"rule": "!oldSelf || self", "message": "cannot be undone"}
CLAIM_STAYS: Final = {
    "rule": "has(self.claim) == has(oldSelf.claim) && (!has(self.claim) || self.claim == oldSelf.claim)",
    "message": "claim cannot be changed",
}


class VolumeClaim(ApiRecord, frozen=True):
    """The PersistentVolumeClaim that a volume was made for."""

    namespace: Annotated[str, described("Namespace of the claim.", max_length=LONGEST_NAME)] = ""
    name: Annotated[str, described("Name of the claim.", max_length=LONGEST_NAME)] = ""


Parameters = Annotated[
    dict[str, Annotated[str, described("Value of the parameter.", max_length=LONGEST_TEXT)]],
    described(
        "Parameters of the StorageClass that a repeated request must have again.",
        default={},
        rules=(NEVER_CHANGES,),
        max_length=32,
    ),
]


class DriveVolumeSpec(ApiRecord, frozen=True):
    """What the volume is. Only `bytes` may grow, and `erase` may become true."""

    drive: Annotated[DriveID, described("Drive that holds the volume.", rules=(NEVER_CHANGES,))]
    node_name: NodeName
    bytes: Annotated[int, byte_count("Size of the volume.", least=1, rules=(ONLY_GROWS,))]
    backing: Annotated[
        Backing,
        described(
            "directory: a folder with a project quota. image: a file with a loop device.", rules=(NEVER_CHANGES,)
        ),
    ]
    file_system: Annotated[
        FileSystemOrNone, described("File system; empty for a raw block volume.", rules=(NEVER_CHANGES,))
    ]
    volume_mode: Annotated[
        VolumeMode, described("Whether pods see a file system or a block device.", rules=(NEVER_CHANGES,))
    ]
    thin: Annotated[bool, described("Allocate the image as it is written.", default=False, rules=(NEVER_CHANGES,))] = (
        False
    )
    access_mode: Annotated[
        VolumeAccessMode,
        described("Access mode of the claim.", default="ReadWriteOnce", rules=(NEVER_CHANGES,)),
    ] = "ReadWriteOnce"
    persistent_volume: Annotated[
        str,
        described("PersistentVolume of the volume.", default="", rules=(NEVER_CHANGES,), max_length=LONGEST_NAME),
    ] = ""
    claim: VolumeClaim | None = None
    volume_claim_id: Annotated[
        VolumeClaimID, described("As in the allocation.", default="", rules=(NEVER_CHANGES,))
    ] = ""
    parameters: Parameters = msgspec.field(default_factory=dict)
    erase: Annotated[
        bool,
        described(
            "The volume was deleted through CSI: the node may erase its data. A volume object that is deleted without "
            "it leaves the data on the drive.",
            default=False,
            rules=(STAYS_TRUE,),
        ),
    ] = False
    reservation_only: Annotated[
        bool,
        described(
            "Made by the controller for reserved space of which it knows no volume. The node reports the phase Erased "
            "if it has no data under this name. If it has data, it keeps the data and reports it in the message.",
            default=False,
            rules=(NEVER_CHANGES,),
        ),
    ] = False


class PublishedPath(ApiRecord, frozen=True):
    """A path where a pod uses the volume."""

    path: Annotated[str, described("Target path of the publish.", max_length=LONGEST_PATH)]
    pod_namespace: Annotated[str, described("Namespace of the pod.", max_length=LONGEST_NAME)] = ""
    pod_name: Annotated[str, described("Name of the pod.", max_length=LONGEST_NAME)] = ""
    pod_uid: Annotated[str, described("UID of the pod.", max_length=128)] = ""
    read_only: Annotated[bool, described("Whether the pod can only read.")] = False


class VolumeCondition(ApiRecord, frozen=True):
    """Whether the volume works, as CSI's volume condition."""

    abnormal: Annotated[bool, described("Whether something is wrong.")] = False
    message: Annotated[str, described("What is wrong, as a sentence.", max_length=LONGEST_TEXT)] = ""


class DriveVolumeStatus(ApiRecord, frozen=True):
    """What the node observes of the volume."""

    phase: Annotated[
        VolumePhase | None,
        described(
            "Pending: not on a drive yet, or not in use. Staged: mounted on the node. Published: a pod uses it. "
            "Erasing and Erased: deleted. Lost: its drive is lost."
        ),
    ] = None
    staged_path: Annotated[str, described("Staging path while it is staged.", max_length=LONGEST_PATH)] = ""
    published: Annotated[
        tuple[PublishedPath, ...], described("Paths where pods use it.", keys=("path",), max_length=256)
    ] = ()
    capacity: Annotated[
        str, described("Size of the backing, as a quantity for people.", pattern=QUANTITY, max_length=32)
    ] = ""
    capacity_bytes: Annotated[int, byte_count("Size of the backing now.")] = 0
    used: Annotated[str, described("Bytes in use, as a quantity for people.", pattern=QUANTITY, max_length=32)] = ""
    used_bytes: Annotated[int, byte_count("Bytes in use.")] = 0
    condition: Annotated[VolumeCondition | None, described("Whether the volume works.")] = None
    conditions: Conditions = ()
    message: Annotated[str, described("Why the phase is what it is, as a sentence.", max_length=LONGEST_TEXT)] = ""
