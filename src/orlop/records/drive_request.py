"""A request to a node to make drives: one for each command and node. The command line writes `spec`. Pure."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from orlop.kube.kinds import STATUS, Kind
from orlop.records.api_record import (
    CATEGORIES,
    GROUP,
    LONGEST_NAME,
    LONGEST_PATH,
    LONGEST_TEXT,
    VERSION,
    ApiRecord,
    Conditions,
    byte_count,
    described,
)
from orlop.records.drive import FileSystem, NodeName

DRIVE_REQUEST: Final = Kind(
    *(GROUP, VERSION, "DriveRequest", "driverequests"),
    namespaced=False,
    short_names=("odreq",),
    categories=CATEGORIES,
    subresources=(STATUS,),
)
MOST_DEVICES: Final = 64

RequestState = Literal["Pending", "Done", "Error"]

ONE_KIND: Final = {
    "rule": "[has(self.devices) && size(self.devices) > 0, has(self.folder), has(self.adopt) && self.adopt]"
    ".filter(asked, asked).size() == 1",
    "message": "exactly one of devices, folder and adopt is required",
}


class RequestedDevice(ApiRecord, frozen=True):
    """A block device to format."""

    name: Annotated[str, described("Name in the kernel, such as sdb.", min_length=1, max_length=LONGEST_NAME)]
    fingerprint: Annotated[
        str,
        described("Fingerprint of the device in NodeDevices: another device of the name is refused.", max_length=128),
    ]
    force: Annotated[bool, described("Overwrite the file system that the device has.")] = False


class RequestedFolder(ApiRecord, frozen=True):
    """A folder to make a drive of."""

    path: Annotated[str, described("Absolute path on the node.", pattern="^/", max_length=LONGEST_PATH)]
    capacity_bytes: Annotated[int, byte_count("Bytes to set aside.", least=1)]


class DriveRequestSpec(ApiRecord, frozen=True):
    """What the node is asked to do: exactly one of `devices`, `folder` and `adopt`."""

    node_name: NodeName
    devices: Annotated[
        tuple[RequestedDevice, ...], described("Devices to format.", keys=("name",), max_length=MOST_DEVICES)
    ] = ()
    file_system: Annotated[FileSystem | None, described("File system for the devices; absent: xfs.")] = None
    folder: RequestedFolder | None = None
    adopt: Annotated[bool, described("Take over the drives that the node has without an object.")] = False
    dry_run: Annotated[bool, described("Change nothing; report what would be done.")] = False


class RequestResult(ApiRecord, frozen=True):
    """The result for one device or folder of the request."""

    target: Annotated[str, described("Name of the device, or path of the folder.", max_length=LONGEST_PATH)]
    drive: Annotated[str, described("Name of the drive that was made.", max_length=36)] = ""
    message: Annotated[str, described("What was done, as a sentence.", max_length=LONGEST_TEXT)] = ""
    error: Annotated[str, described("Why it was not done; empty if it was.", max_length=LONGEST_TEXT)] = ""


class DriveRequestStatus(ApiRecord, frozen=True):
    """What the node reports of the request."""

    state: Annotated[RequestState | None, described("Error: at least one result has an error.")] = None
    results: Annotated[
        tuple[RequestResult, ...],
        described("Result for each device or folder.", keys=("target",), max_length=MOST_DEVICES),
    ] = ()
    message: Annotated[str, described("Summary, as a sentence.", max_length=LONGEST_TEXT)] = ""
    conditions: Conditions = ()
