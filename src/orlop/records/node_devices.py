"""The block devices of a node, and why one cannot become a drive. Written by the node. Pure."""

from __future__ import annotations

from typing import Annotated, Final

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
from orlop.records.drive import NodeName

NODE_DEVICES: Final = Kind(
    *(GROUP, VERSION, "NodeDevices", "nodedevices"),
    namespaced=False,
    short_names=("ondev",),
    categories=CATEGORIES,
    subresources=(STATUS,),
)
MOST_DEVICES_OF_NODE: Final = 1024

PathText = Annotated[str, described("A path.", max_length=LONGEST_PATH)]
Sentence = Annotated[str, described("A sentence.", max_length=LONGEST_TEXT)]
ShortText = Annotated[str, described("A text.", max_length=LONGEST_NAME)]


class SeenDevice(ApiRecord, frozen=True):
    """One block device, as the node sees it."""

    name: Annotated[str, described("Name in the kernel, such as sdb.", min_length=1, max_length=LONGEST_NAME)]
    path: Annotated[PathText, described("Path of the device file.")] = ""
    major_minor: Annotated[str, described("Device number.", max_length=32)] = ""
    fingerprint: Annotated[
        str, described("Changes with the device and what it holds; a request names it.", max_length=128)
    ] = ""
    bytes: Annotated[int, byte_count("Size of the device.")] = 0
    size: Annotated[str, described("Size as a quantity for people.", max_length=32)] = ""
    model: Annotated[ShortText, described("Vendor and model.")] = ""
    serial: Annotated[ShortText, described("Serial number.")] = ""
    wwn: Annotated[ShortText, described("World wide name.")] = ""
    rotational: Annotated[bool, described("Whether it has spinning disks.")] = False
    file_system: Annotated[
        ShortText, described("File system or other signature on it; empty: none, or it was not read.")
    ] = ""
    file_system_uuid: Annotated[ShortText, described("UUID of the file system.")] = ""
    label: Annotated[ShortText, described("Label of the file system.")] = ""
    holders: Annotated[tuple[ShortText, ...], described("Devices built on it.", max_length=64)] = ()
    mount_points: Annotated[tuple[PathText, ...], described("Where it is mounted.", max_length=64)] = ()
    drive: Annotated[str, described("Name of the drive, if it is one.", max_length=36)] = ""
    unusable: Annotated[
        tuple[Sentence, ...], described("Why it cannot become a drive; none: it can.", max_length=16)
    ] = ()


class NodeDevicesSpec(ApiRecord, frozen=True):
    """The node that the object describes."""

    node_name: NodeName


class NodeDevicesStatus(ApiRecord, frozen=True):
    """The block devices of the node."""

    devices: Annotated[
        tuple[SeenDevice, ...], described("Block devices.", keys=("name",), max_length=MOST_DEVICES_OF_NODE)
    ] = ()
    count: Annotated[int, described("Number of devices.", ge=0, format_="int32")] = 0
    usable: Annotated[int, described("Number of devices that can become drives.", ge=0, format_="int32")] = 0
    drives: Annotated[int, described("Number of devices that are drives.", ge=0, format_="int32")] = 0
    conditions: Conditions = ()
