"""Read from a VolumeAttachment and its PersistentVolume which volume is to be attached, and how. Pure.

No field is trusted: the API server validates objects, but some are older than its rules, and `orlop explain` reads from
any server. Invalid objects raise `BadObject`, with a sentence for the status of the VolumeAttachment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

ApiObject: TypeAlias = Mapping[str, Any]

LARGEST_ATTRIBUTES: Final = 1 << 20
"""Bytes of all keys and values together: a driver accepts messages of 4 MiB."""
BLOCK, FILESYSTEM = "Block", "Filesystem"
ONCE, ONCE_POD, READ_MANY, MANY = "ReadWriteOnce", "ReadWriteOncePod", "ReadOnlyMany", "ReadWriteMany"
MIGRATED: Final[Mapping[str, str]] = {
    "awsElasticBlockStore": "ebs.csi.aws.com",
    "azureDisk": "disk.csi.azure.com",
    "azureFile": "file.csi.azure.com",
    "cinder": "cinder.csi.openstack.org",
    "gcePersistentDisk": "pd.csi.storage.gke.io",
    "portworxVolume": "pxd.portworx.com",
    "vsphereVolume": "csi.vsphere.vmware.com",
}
"""In-tree plugins, by their field of a PersistentVolume, and the CSI drivers that Kubernetes migrates them to."""
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
    """An object cannot be used. The message says what is wrong, and where."""


@dataclass(frozen=True, slots=True)
class SecretName:
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class VolumeSource:
    """`volume_name` is that of the PersistentVolume; empty for a volume that the VolumeAttachment itself describes."""

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
    """Return the name of its PersistentVolume; empty if it names none."""
    name = _mapping(_mapping(attachment, "spec"), "source").get("persistentVolumeName")
    return name if isinstance(name, str) else ""


def source_of(attachment: ApiObject, volume: ApiObject | None, driver: str) -> VolumeSource:
    """Return everything that attaching needs. `volume` is the PersistentVolume that the attachment names, if any."""
    spec, where = _spec_of(attachment, volume)
    csi = _csi_of(spec, where, driver)
    return VolumeSource(
        volume_name_of(attachment),
        _handle(csi, where),
        read_only=csi.get("readOnly") is True,
        fs_type=_text(csi, "fsType"),
        attributes=_attributes(csi, where),
        secret=_secret(csi, where),
        access_modes=_texts(spec, "accessModes"),
        mount_options=_texts(spec, "mountOptions"),
        is_block=spec.get("volumeMode") == BLOCK,
    )


def bare_source_of(attachment: ApiObject, volume: ApiObject | None, driver: str) -> VolumeSource:
    """Return what detaching needs, handle and secret: other faults of the volume must not prevent the detach."""
    spec, where = _spec_of(attachment, volume)
    csi = _csi_of(spec, where, driver)
    return VolumeSource(volume_name_of(attachment), _handle(csi, where), secret=_secret(csi, where))


def _spec_of(attachment: ApiObject, volume: ApiObject | None) -> tuple[ApiObject, str]:
    """Return the spec of a PersistentVolume, and the place where it was found, for errors."""
    name = volume_name_of(attachment)
    inline = _mapping(_mapping(attachment, "spec"), "source").get("inlineVolumeSpec")
    if name and inline is not None:
        raise BadObject(
            "spec.source names a PersistentVolume and has an inlineVolumeSpec: it may have only one of them"
        )
    if not name and inline is None:
        raise BadObject("spec.source names no PersistentVolume and has no inlineVolumeSpec: it must have one of them")
    if name and volume is None:
        raise BadObject(f"there is no PersistentVolume {name}")
    where = f"the PersistentVolume {name}" if name else "spec.source.inlineVolumeSpec"
    spec = volume.get("spec") if volume is not None and name else inline
    if not isinstance(spec, Mapping):
        raise BadObject(f"{where} has no spec")
    return spec, where


def _csi_of(spec: ApiObject, where: str, driver: str) -> ApiObject:
    csi = spec.get("csi")
    if not isinstance(csi, Mapping):
        raise BadObject(f"{where} is not a volume of a CSI driver{_kind_of(spec)}")
    if csi.get("driver") != driver:
        raise BadObject(f"{where} belongs to the driver {csi.get('driver')!r}, and this VolumeAttachment to {driver!r}")
    return csi


def _handle(csi: ApiObject, where: str) -> str:
    handle = csi.get("volumeHandle")
    if not isinstance(handle, str) or not handle:
        raise BadObject(f"{where} has no csi.volumeHandle, by which the driver identifies the volume")
    return handle


def checked_access_modes(named: tuple[str, ...]) -> frozenset[str]:
    """Return the access modes as a set. Raises `BadObject` if they contradict each other. Only attaching needs this."""
    modes = frozenset(named)
    if unknown := sorted(modes - {ONCE, ONCE_POD, READ_MANY, MANY}):
        raise BadObject(
            f"the access mode {unknown[0]!r} is unknown; allowed are {ONCE}, {ONCE_POD}, {READ_MANY} and {MANY}"
        )
    if not modes:
        raise BadObject("the volume has no access mode; it needs at least one")
    if ONCE_POD in modes and len(modes) > 1:
        raise BadObject(f"the access mode {ONCE_POD} allows no other beside it")
    if {READ_MANY, ONCE} <= modes and MANY not in modes:
        raise BadObject(f"the access modes {READ_MANY} and {ONCE} contradict each other: a volume has one of them")
    return modes


def _kind_of(spec: Mapping[str, Any]) -> str:
    """Return which kind of volume it is instead, for the error. Volumes of in-tree plugins are not translated here."""
    kinds = sorted(set(spec) - _NOT_SOURCES)
    if not kinds:
        return ""
    if kinds[0] not in MIGRATED:
        return f", but of {kinds[0]}"
    return (
        f", but of {kinds[0]}, an in-tree plugin that Kubernetes migrates to {MIGRATED[kinds[0]]}: this attacher "
        "does not translate such volumes. Create one with spec.csi, or use the attacher of that driver's authors"
    )


def _attributes(csi: Mapping[str, Any], where: str) -> Mapping[str, str]:
    attributes = csi.get("volumeAttributes") or {}
    if not isinstance(attributes, Mapping) or not all(isinstance(value, str) for value in attributes.values()):
        raise BadObject(f"csi.volumeAttributes of {where} must be strings")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in attributes.items())
    if size > LARGEST_ATTRIBUTES:
        raise BadObject(f"csi.volumeAttributes of {where} have {size} bytes; at most {LARGEST_ATTRIBUTES} are allowed")
    return dict(attributes)


def _secret(csi: Mapping[str, Any], where: str) -> SecretName | None:
    reference = csi.get("controllerPublishSecretRef")
    if reference is None:
        return None
    name, namespace = _text(reference, "name"), _text(reference, "namespace")
    if not name or not namespace:
        raise BadObject(f"csi.controllerPublishSecretRef of {where} needs a name and a namespace")
    return SecretName(namespace, name)


def _mapping(obj: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    part = obj.get(member)
    return part if type(part) is dict or isinstance(part, Mapping) else {}


def _text(obj: Any, member: str) -> str:
    value = obj.get(member) if isinstance(obj, Mapping) else None
    return value if isinstance(value, str) else ""


def _texts(obj: Mapping[str, Any], member: str) -> tuple[str, ...]:
    values = obj.get(member)
    return tuple(value for value in values if isinstance(value, str)) if isinstance(values, list) else ()
