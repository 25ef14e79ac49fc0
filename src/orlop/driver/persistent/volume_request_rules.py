"""Read which volume and which drives a request asks for: the first of the nine steps of the choice of a drive. Pure.

A key with our prefix that nothing reads is refused, and so is one that lacks only the prefix: a misspelled tier must
not place a volume on any drive. All other keys are ignored, because a StorageClass may have those of other programs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, TypeVar, get_args

from orlop.csi.error_codes import InvalidArgument, OutOfRange
from orlop.csi.proto import csi_pb2
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import LabelSelector
from orlop.records.api_record import GROUP
from orlop.records.drive import FileSystem, Tier, VolumeAccessMode, VolumeMode
from orlop.records.volume import DriveVolumeSpec, FileSystemOrNone, VolumeClaim
from orlop.records.volume_context import is_volume_id

PREFIX: Final = f"{GROUP}/"
TIER_KEY: Final = f"{PREFIX}access-tier"
SELECTOR_KEY: Final = f"{PREFIX}drive-selector"
CLAIM_ID_KEY: Final = f"{PREFIX}volume-claim-id"
BACKING_KEY: Final = f"{PREFIX}backing"
THIN_KEY: Final = f"{PREFIX}thin"
PARAMETER_KEYS: Final = (TIER_KEY, SELECTOR_KEY, CLAIM_ID_KEY, BACKING_KEY, THIN_KEY)
CLAIM_NAME: Final = "csi.storage.k8s.io/pvc/name"
CLAIM_NAMESPACE: Final = "csi.storage.k8s.io/pvc/namespace"
VOLUME_NAME: Final = "csi.storage.k8s.io/pv/name"

TIERS: Final[Mapping[str, Tier]] = {each: each for each in get_args(Tier)}
FILE_SYSTEMS: Final[Mapping[str, FileSystem]] = {each: each for each in get_args(FileSystem)}
WantedBacking = Literal["auto", "directory", "image"]
BACKINGS: Final[Mapping[str, WantedBacking]] = {each: each for each in get_args(WantedBacking)}
FLAGS: Final[Mapping[str, bool]] = {"true": True, "false": False}
_CLAIM_ID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
LONGEST_NAME: Final = 128
LONGEST_SELECTOR: Final = 1024

AccessMode = csi_pb2.VolumeCapability.AccessMode.Mode
MODES_OF_ONE_NODE: Final = frozenset(
    {
        AccessMode.SINGLE_NODE_WRITER,
        AccessMode.SINGLE_NODE_READER_ONLY,
        AccessMode.SINGLE_NODE_SINGLE_WRITER,
        AccessMode.SINGLE_NODE_MULTI_WRITER,
    }
)

_Value = TypeVar("_Value")
Segments = Mapping[str, str]
"""One topology: the keys with their values, all of which must hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedStorage:
    """What the volume must be, and which drives may have it."""

    volume_mode: VolumeMode = "Filesystem"
    file_system: FileSystemOrNone = ""
    """Empty: none was asked for, or the volume is a raw block device."""
    backing: WantedBacking = "auto"
    thin: bool = False
    tier: Tier | None = None
    selector: LabelSelector = field(default_factory=LabelSelector)
    volume_claim_id: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    """Those that a repeated request must have again, normalized and sorted."""


@dataclass(frozen=True, slots=True)
class SizeRange:
    """Bytes; 0 leaves the bound open."""

    required: int = 0
    limit: int = 0

    def holds(self, size: int) -> bool:
        return self.required <= size and (not self.limit or size <= self.limit)


@dataclass(frozen=True, slots=True)
class WantedTopology:
    """Where the volume must be usable (in one of `requisite`), and where it is best (`preferred`, best first)."""

    requisite: tuple[Segments, ...] = ()
    preferred: tuple[Segments, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedVolume:
    """A valid CreateVolume request."""

    name: str
    volume_id: str
    storage: WantedStorage
    size: SizeRange = SizeRange()
    topology: WantedTopology = WantedTopology()
    claim: VolumeClaim | None = None
    persistent_volume: str = ""
    access_mode: VolumeAccessMode = "ReadWriteOnce"


def wanted_volume(request: csi_pb2.CreateVolumeRequest) -> WantedVolume:
    """Return what CreateVolume asks for. Raise `InvalidArgument` or `OutOfRange` if no drive can have such a volume."""
    _check_name(request.name)
    if request.HasField("volume_content_source"):
        raise InvalidArgument("volume_content_source is set: volumes are not made from snapshots or other volumes")
    if request.mutable_parameters:
        raise InvalidArgument("mutable_parameters are set: volumes on drives have no parameters that can be changed")
    if not request.volume_capabilities:
        raise InvalidArgument("volume_capabilities are missing")
    parameters = dict(request.parameters)
    requirements = request.accessibility_requirements
    names = (parameters.pop(key, "") for key in (CLAIM_NAMESPACE, CLAIM_NAME, VOLUME_NAME))
    namespace, claim_name, volume_name = names
    return WantedVolume(
        name=request.name,
        volume_id=volume_id_of(request.name),
        storage=wanted_storage(request.volume_capabilities, parameters),
        size=size_range(request.capacity_range),
        topology=WantedTopology(_terms(requirements.requisite), _terms(requirements.preferred)),
        claim=VolumeClaim(namespace=namespace, name=claim_name) if claim_name else None,
        persistent_volume=volume_name,
        access_mode=_access_mode(request.volume_capabilities),
    )


def volume_id_of(name: str) -> str:
    """Return the id of the volume with this name: the name itself, if it can name an object and a folder."""
    return name if is_volume_id(name) else f"v-{sha256(name.encode()).hexdigest()}"


def _check_name(name: str) -> None:
    if not name:
        raise InvalidArgument("name is missing")
    if len(name.encode()) > LONGEST_NAME:
        raise InvalidArgument(f"name has more than {LONGEST_NAME} bytes")


def size_range(capacity: csi_pb2.CapacityRange) -> SizeRange:
    required, limit = capacity.required_bytes, capacity.limit_bytes
    if required < 0 or limit < 0:
        raise OutOfRange(f"capacity_range is negative: {required} to {limit} bytes")
    if limit and required > limit:
        raise OutOfRange(f"capacity_range is empty: required are {required} bytes, and the limit is {limit}")
    return SizeRange(required, limit)


def wanted_storage(capabilities: Iterable[csi_pb2.VolumeCapability], parameters: Mapping[str, str]) -> WantedStorage:
    """Read capabilities and parameters, which creation, capacity and validation have in common."""
    volume_mode, file_system = form_of(tuple(capabilities))
    _check_keys(parameters)
    tier_text = parameters.get(TIER_KEY)
    tier = None if tier_text is None else _choice(TIER_KEY, tier_text.lower(), TIERS)
    backing = _choice(BACKING_KEY, parameters.get(BACKING_KEY, "auto").lower(), BACKINGS)
    thin = _choice(THIN_KEY, parameters.get(THIN_KEY, "false").lower(), FLAGS)
    if volume_mode == "Block" and backing == "directory":
        raise InvalidArgument(f"{BACKING_KEY} is directory, which cannot be a block device: use image or auto")
    selector = _selector(parameters.get(SELECTOR_KEY, ""))
    claim_id = _claim_id(parameters.get(CLAIM_ID_KEY, ""))
    decided = {
        TIER_KEY: tier or "",
        BACKING_KEY: backing if backing != "auto" else "",
        THIN_KEY: "true" if thin else "",
        SELECTOR_KEY: str(selector),
        CLAIM_ID_KEY: claim_id,
    }
    return WantedStorage(
        volume_mode=volume_mode,
        file_system=file_system,
        backing=backing,
        thin=thin,
        tier=tier,
        selector=selector,
        volume_claim_id=claim_id,
        parameters=tuple(sorted((key, value) for key, value in decided.items() if value)),
    )


def _check_keys(parameters: Mapping[str, str]) -> None:
    names = {key.removeprefix(PREFIX): key for key in PARAMETER_KEYS}
    for key in sorted(parameters):
        # In any case: keys are exact, and one in capitals is misspelled too.
        if key.lower().startswith(PREFIX) and key not in PARAMETER_KEYS:
            raise InvalidArgument(f"the parameter {key} is unknown; there are: {', '.join(PARAMETER_KEYS)}")
        if key.lower() in names:
            raise InvalidArgument(f"the parameter {key} lacks its prefix: write {names[key.lower()]}")


def _choice(key: str, text: str, allowed: Mapping[str, _Value]) -> _Value:
    if text not in allowed:
        raise InvalidArgument(f"the parameter {key} is {text[:LONGEST_NAME]!r}; it is one of {', '.join(allowed)}")
    return allowed[text]


def _selector(text: str) -> LabelSelector:
    if len(text) > LONGEST_SELECTOR:
        raise InvalidArgument(f"the parameter {SELECTOR_KEY} has more than {LONGEST_SELECTOR} characters")
    try:
        return LabelSelector.parse(text)
    except InvalidSelector as error:
        raise InvalidArgument(f"the parameter {SELECTOR_KEY} is not a label selector: {error}") from None


def _claim_id(text: str) -> str:
    if text and not _CLAIM_ID.fullmatch(text):
        raise InvalidArgument(f"the parameter {CLAIM_ID_KEY} is {text[:LONGEST_NAME]!r}, which is not a UUID")
    return text.lower()


def form_of(capabilities: Sequence[csi_pb2.VolumeCapability]) -> tuple[VolumeMode, FileSystemOrNone]:
    """Return the mode and the file system of a volume that has all these capabilities."""
    kinds = {capability.WhichOneof("access_type") for capability in capabilities}
    if None in kinds:
        raise InvalidArgument("a volume capability has neither mount nor block")
    if len(kinds) > 1:
        raise InvalidArgument("the volume capabilities ask for mount and block: a volume is one of them")
    for capability in capabilities:
        _check_mode(capability)
    requested = {capability.mount.fs_type.lower() for capability in capabilities if capability.mount.fs_type}
    if len(requested) > 1:
        raise InvalidArgument(f"the volume capabilities ask for several file systems: {', '.join(sorted(requested))}")
    for file_system in requested:
        if file_system not in FILE_SYSTEMS:
            raise InvalidArgument(
                f"the file system {file_system[:LONGEST_NAME]!r} is none of {', '.join(FILE_SYSTEMS)}"
            )
        return "Filesystem", FILE_SYSTEMS[file_system]
    return ("Block", "") if kinds == {"block"} else ("Filesystem", "")


def _access_mode(capabilities: Iterable[csi_pb2.VolumeCapability]) -> VolumeAccessMode:
    modes = {capability.access_mode.mode for capability in capabilities}
    return "ReadWriteOncePod" if modes == {AccessMode.SINGLE_NODE_SINGLE_WRITER} else "ReadWriteOnce"


def _check_mode(capability: csi_pb2.VolumeCapability) -> None:
    mode = capability.access_mode.mode
    if not capability.HasField("access_mode") or mode == AccessMode.UNKNOWN:
        raise InvalidArgument("a volume capability has no access_mode")
    if mode not in MODES_OF_ONE_NODE:
        name = AccessMode.Name(mode) if mode in AccessMode.values() else str(mode)
        raise InvalidArgument(
            f"the access mode {name} is not possible: a volume on a drive is used on the drive's node alone. "
            "Use ReadWriteOnce or ReadWriteOncePod"
        )


def _terms(topologies: Iterable[csi_pb2.Topology]) -> tuple[Segments, ...]:
    return tuple(dict(topology.segments) for topology in topologies)


# ---- a repeated request ----------------------------------------------------------------------------------------------


def incompatibility(wanted: WantedVolume, volume: DriveVolumeSpec, node_segments: Segments) -> str | None:
    """Return why an existing volume of this name is not what is asked for; None if it is."""
    storage = wanted.storage
    if not wanted.size.holds(volume.bytes):
        return f"it has {volume.bytes} bytes, and the request asks for {_range_text(wanted.size)}"
    if storage.volume_mode != volume.volume_mode:
        return f"its mode is {volume.volume_mode}, and the request asks for {storage.volume_mode}"
    if storage.file_system and storage.file_system != volume.file_system:
        return f"its file system is {volume.file_system}, and the request asks for {storage.file_system}"
    if dict(storage.parameters) != dict(volume.parameters):
        return (
            f"it was made with the parameters {dict(volume.parameters)}, and the request has {dict(storage.parameters)}"
        )
    if not allows(wanted.topology, node_segments):
        return f"it is on the node {volume.node_name}, which the request does not allow"
    return None


def allows(topology: WantedTopology, segments: Segments) -> bool:
    return not topology.requisite or any(matches(term, segments) for term in topology.requisite)


def matches(term: Segments, segments: Segments) -> bool:
    return term.items() <= segments.items()


def _range_text(size: SizeRange) -> str:
    return f"{size.required} to {size.limit} bytes" if size.limit else f"at least {size.required}"
