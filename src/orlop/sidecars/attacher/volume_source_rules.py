"""What a VolumeAttachment wants attached, read from it and from its PersistentVolume. Pure.

Everything is untrusted: the API server checks shapes, but objects older than its rules, and those of other servers,
come here too. What cannot be understood raises `BadObject` with a sentence for whoever looks at the VolumeAttachment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LARGEST_ATTRIBUTES: Final = 1 << 20
"""Bytes of all keys and values together: a driver takes messages of 4 MiB."""
BLOCK, FILESYSTEM = "Block", "Filesystem"
_NOT_SOURCES: Final = frozenset(
    (
        *(
            "accessModes",
            "capacity",
            "claimRef",
            "csi",
            "mountOptions",
            "nodeAffinity",
            "persistentVolumeReclaimPolicy",
        ),
        *("storageClassName", "volumeAttributesClassName", "volumeMode"),
    )
)


class BadObject(ValueError):
    """A sentence on what is wrong with the object, and where."""


@dataclass(frozen=True, slots=True)
class SecretName:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """`volume_name` is that of the PersistentVolume; empty where the VolumeAttachment holds all of it itself."""

    volume_name: str
    handle: str
    read_only: bool = False
    fs_type: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    secret: SecretName | None = None
    access_modes: tuple[str, ...] = ()
    mount_options: tuple[str, ...] = ()
    is_block: bool = False


def volume_name_of(attachment: Mapping[str, Any]) -> str:
    """Of the PersistentVolume it names; empty where it names none."""
    name = _mapping(_mapping(attachment, "spec"), "source").get("persistentVolumeName")
    return name if isinstance(name, str) else ""


def source_of(attachment: Mapping[str, Any], volume: Mapping[str, Any] | None, driver: str) -> VolumeSource:
    """`volume` is the PersistentVolume that it names, where there is one."""
    name = volume_name_of(attachment)
    inline = _mapping(_mapping(attachment, "spec"), "source").get("inlineVolumeSpec")
    if name and inline is not None:
        raise BadObject(
            "spec.source names a PersistentVolume and has an inlineVolumeSpec: it may have only one of them"
        )
    if inline is not None:
        return _read(inline, "spec.source.inlineVolumeSpec", driver, "")
    if not name:
        raise BadObject(
            "spec.source names no PersistentVolume and has no inlineVolumeSpec: nobody knows what to attach"
        )
    if volume is None:
        raise BadObject(f"there is no PersistentVolume {name}")
    return _read(volume.get("spec"), f"the PersistentVolume {name}", driver, name)


def _read(spec: Any, where: str, driver: str, volume_name: str) -> VolumeSource:
    if not isinstance(spec, Mapping):
        raise BadObject(f"{where} has no spec")
    csi = spec.get("csi")
    if not isinstance(csi, Mapping):
        raise BadObject(f"{where} is no volume of a CSI driver{_kind_of(spec)}")
    if csi.get("driver") != driver:
        raise BadObject(f"{where} belongs to the driver {csi.get('driver')!r}, and this VolumeAttachment to {driver!r}")
    handle = csi.get("volumeHandle")
    if not isinstance(handle, str) or not handle:
        raise BadObject(f"{where} has no csi.volumeHandle: the driver would not know which volume is meant")
    return VolumeSource(
        volume_name,
        handle,
        read_only=csi.get("readOnly") is True,
        fs_type=_text(csi, "fsType"),
        attributes=_attributes(csi, where),
        secret=_secret(csi, where),
        access_modes=_texts(spec, "accessModes"),
        mount_options=_texts(spec, "mountOptions"),
        is_block=spec.get("volumeMode") == BLOCK,
    )


def _kind_of(spec: Mapping[str, Any]) -> str:
    """Kubernetes' own kinds of storage are attached by their successors, which we are not told to stand in for."""
    kinds = sorted(set(spec) - _NOT_SOURCES)
    if not kinds:
        return ""
    return f", but of {kinds[0]}: what is migrated from a plugin within Kubernetes is not attached by this attacher"


def _attributes(csi: Mapping[str, Any], where: str) -> Mapping[str, str]:
    found = csi.get("volumeAttributes") or {}
    if not isinstance(found, Mapping) or not all(isinstance(value, str) for value in found.values()):
        raise BadObject(f"csi.volumeAttributes of {where} are not texts")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in found.items())
    if size > LARGEST_ATTRIBUTES:
        raise BadObject(
            f"csi.volumeAttributes of {where} have {size} bytes: no driver takes more than {LARGEST_ATTRIBUTES}"
        )
    return dict(found)


def _secret(csi: Mapping[str, Any], where: str) -> SecretName | None:
    reference = csi.get("controllerPublishSecretRef")
    if reference is None:
        return None
    name, namespace = _text(reference, "name"), _text(reference, "namespace")
    if not name or not namespace:
        raise BadObject(f"csi.controllerPublishSecretRef of {where} needs a name and a namespace")
    return SecretName(namespace, name)


def _mapping(found: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    part = found.get(member)
    return part if type(part) is dict or isinstance(part, Mapping) else {}


def _text(found: Any, member: str) -> str:
    value = found.get(member) if isinstance(found, Mapping) else None
    return value if isinstance(value, str) else ""


def _texts(found: Mapping[str, Any], member: str) -> tuple[str, ...]:
    values = found.get(member)
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()
