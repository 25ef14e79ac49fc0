"""Which volumes a pod should have on this node, and why one cannot be had yet, in kubelet's words. Pure.

Of a pod's volumes those count that a container mounts, or has as a device. Inline ones are in the pod; the others are
found by their claim, and the claim's volume: both as the API server has them now, since a cache may be behind.
Volumes of other kinds than CSI's (an emptyDir, a ConfigMap) are looked at in `plain_volumes`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from onenode.kubelet.volumes.steps.csi_request_rules import facts_of
from onenode.kubelet.volumes.steps.expansion_rules import claim_facts, storage_of
from onenode.kubelet.volumes.volume_paths import TAKEN_BY_BLOCK, is_fit_name
from onenode.kubelet.volumes.volume_values import (
    LOCAL_DRIVER,
    LOCAL_PATH,
    ApiObject,
    ClaimFacts,
    DesiredMount,
    Lifecycle,
    PodFacts,
    UniqueName,
    VolumeMode,
    VolumeSpec,
    inline_handle,
    unique_name,
)
from orlop.kube import objects
from orlop.kube.objects import ObjectName

CLAIM_FINALIZER: Final = "kubernetes.io/pvc-protection"
CSI_SOURCES: Final = ("csi", "persistentVolumeClaim", "ephemeral")
"""The fields of a pod's volume that lead to a CSI driver."""
CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


@dataclass(frozen=True, slots=True)
class Unread:
    """What could not be read, and why."""

    reason: str


Read: TypeAlias = ApiObject | Unread


@dataclass(frozen=True, slots=True)
class VolumeObjects:
    """What the API server said: claims of the pod's namespace and volumes, by name; CSIDrivers as last seen."""

    claims: Mapping[str, Read] = field(default_factory=dict)
    volumes: Mapping[str, Read] = field(default_factory=dict)
    drivers: Mapping[str, ApiObject] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodDesire:
    """`wanted` are the names of all volumes that the pod waits for, as the pod calls them."""

    mounts: tuple[DesiredMount, ...] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()


NOT_UNDERSTOOD: Final = "the pod, a claim or a volume of it cannot be understood; the kubelet's log says why"
NOT_BOUND: Final = "PVC is not bound"
SOMETHING: Final = "?"
"""In the place of a volume's name, where not even that is known; no volume has it."""


class NotYet(Exception):
    """The volume cannot be had now; the text is kubelet's."""


# ---- what must be read -----------------------------------------------------------------------------------------------


def claims_to_read(pod: ApiObject) -> tuple[str, ...]:
    """Names of claims in the pod's namespace, each once."""
    names = (_claim_name(pod, volume) for volume in used_volumes(pod))
    return tuple(dict.fromkeys(name for name in names if name is not None))


def volume_to_read(claim: Read) -> str | None:
    """The name of the claim's PersistentVolume, once it is bound to one."""
    if isinstance(claim, Unread) or why_claim_is_not_ready(claim) is not None:
        return None
    return str(_spec(claim)["volumeName"])


def drivers_named_by(pod: ApiObject, volumes: Mapping[str, Read]) -> frozenset[str]:
    inline = (volume.get("csi") for volume in used_volumes(pod))
    persistent = (_spec(volume).get("csi") for volume in volumes.values() if not isinstance(volume, Unread))
    return frozenset(str(source.get("driver") or "") for source in (*inline, *persistent) if source is not None)


# ---- what follows ----------------------------------------------------------------------------------------------------


def desire_of(pod: ApiObject, found: VolumeObjects) -> PodDesire:
    mounts: dict[UniqueName, DesiredMount] = {}
    errors: dict[str, str] = {}
    volumes = [volume for volume in used_volumes(pod) if _is_ours(volume)]
    for volume in volumes:
        try:
            mount = _mount(pod, volume, found)
        except NotYet as error:
            errors[_name(volume)] = str(error)
            continue
        other = mounts.get(mount.volume)
        mounts[mount.volume] = mount if other is None else _merged(other, mount)
    wanted = tuple(_name(volume) for volume in volumes)
    return PodDesire(tuple(mounts.values()), errors, wanted)


def not_understood(before: PodDesire) -> PodDesire:
    """What was known stays, and the pod waits for more: nothing of it may go meanwhile."""
    return replace(before, errors={SOMETHING: NOT_UNDERSTOOD}, wanted=tuple(dict.fromkeys((*before.wanted, SOMETHING))))


def pod_facts(pod: ApiObject) -> PodFacts:
    context = _spec(pod).get("securityContext") or {}
    group = context.get("fsGroup")
    return PodFacts(
        objects.uid(pod),
        objects.name_of(pod),
        str(_spec(pod).get("serviceAccountName") or ""),
        group if isinstance(group, int) else None,
        str(context.get("fsGroupChangePolicy") or ""),
    )


def _mount(pod: ApiObject, volume: ApiObject, found: VolumeObjects) -> DesiredMount:
    source = volume.get("csi")
    claim = None
    if source is not None:
        spec, read_only = _inline_spec(pod, volume, source), bool(source.get("readOnly"))
    else:
        spec, claim = _claimed_spec(pod, volume, found)
        read_only = bool((volume.get("persistentVolumeClaim") or {}).get("readOnly"))
    _refuse_unfit_names(pod, spec)
    driver = facts_of(spec.driver, found.drivers.get(spec.driver))
    return DesiredMount(
        unique_name(spec, objects.uid(pod)),
        spec,
        pod_facts(pod),
        (_name(volume),),
        read_only=read_only,
        attach_required=not spec.is_inline and driver.attach_required,
        requires_republish=driver.requires_republish,
        claim=claim,
    )


def _merged(one: DesiredMount, other: DesiredMount) -> DesiredMount:
    return replace(one, outer_names=(*one.outer_names, *other.outer_names))


def _refuse_unfit_names(pod: ApiObject, spec: VolumeSpec) -> None:
    """All of them become names of folders; the API server lets no such name pass, but it may not be ours."""
    for name in (objects.uid(pod), spec.name.replace("/", "~"), spec.driver):
        if not is_fit_name(name):
            raise NotYet(f"{name!r} cannot be the name of a folder: the pod, the volume or the driver needs another")
    if spec.mode is VolumeMode.BLOCK and spec.name in TAKEN_BY_BLOCK:
        raise NotYet(f"a raw block volume cannot be called {spec.name!r}, which is kubelet's: give it another name")


# ---- inline ----------------------------------------------------------------------------------------------------------


def _inline_spec(pod: ApiObject, volume: ApiObject, source: ApiObject) -> VolumeSpec:
    secret = (source.get("nodePublishSecretRef") or {}).get("name")
    return VolumeSpec(
        _name(volume),
        str(source.get("driver") or ""),
        inline_handle(objects.uid(pod), _name(volume)),
        Lifecycle.EPHEMERAL,
        fs_type=str(source.get("fsType") or ""),
        attributes=dict(source.get("volumeAttributes") or {}),
        publish_secret=ObjectName(objects.namespace(pod), secret) if secret else None,
    )


# ---- by a claim ------------------------------------------------------------------------------------------------------


def _claimed_spec(pod: ApiObject, volume: ApiObject, found: VolumeObjects) -> tuple[VolumeSpec, ClaimFacts]:
    claim_name = _claim_name(pod, volume) or ""
    about = f"error processing PVC {objects.namespace(pod)}/{claim_name}"
    claim = found.claims.get(claim_name, Unread("it was not read"))
    if isinstance(claim, Unread):
        raise NotYet(f"{about}: failed to fetch PVC from API server: {claim.reason}")
    if (why_not := why_claim_is_not_ready(claim)) is not None:
        raise NotYet(f"{about}: {why_not}")
    _refuse_foreign_claim(pod, volume, claim)
    persistent = found.volumes.get(str(_spec(claim)["volumeName"]), Unread("it was not read"))
    if (why_not := _why_volume_is_not_ready(claim, persistent)) is not None or isinstance(persistent, Unread):
        raise NotYet(f"{about}: {why_not}")
    spec = _persistent_spec(persistent)
    _refuse_wrong_mode(pod, volume, spec.mode)
    return spec, claim_facts(claim)


def why_claim_is_not_ready(claim: ApiObject) -> str | None:
    if objects.is_being_deleted(claim) and not objects.has_finalizer(claim, CLAIM_FINALIZER):
        return "PVC is being deleted"
    if (claim.get("status") or {}).get("phase") != "Bound":
        return NOT_BOUND
    return None if _spec(claim).get("volumeName") else "PVC has empty pvc.Spec.VolumeName"


def _why_volume_is_not_ready(claim: ApiObject, volume: Read) -> str | None:
    name = _spec(claim)["volumeName"]
    if isinstance(volume, Unread):
        return f"failed to fetch PV {name} from API server: {volume.reason}"
    reference = _spec(volume).get("claimRef")
    if reference is None:
        return f"found PV object {name} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim"
    if (bound_to := reference.get("uid") or "") != objects.uid(claim):
        return (
            f"found PV object {name} but its pv.Spec.ClaimRef.UID {bound_to} does not point to claim.UID "
            f"{objects.uid(claim)}"
        )
    return None


def _refuse_foreign_claim(pod: ApiObject, volume: ApiObject, claim: ApiObject) -> None:
    """A claim that only has the name of a generic ephemeral volume's is somebody else's data."""
    if volume.get("ephemeral") is None:
        return
    owner = objects.controller_of(claim)
    if owner is None or owner.get("uid") != objects.uid(pod):
        raise NotYet(f"PVC {objects.name_of(claim)} was not created for pod {objects.name_of(pod)} (pod is not owner)")


def _persistent_spec(volume: ApiObject) -> VolumeSpec:
    spec, name = _spec(volume), objects.name(volume)
    source = spec.get("csi") or _local_source(name, spec)
    if source is None:
        raise NotYet(f'failed to get Plugin from volumeSpec for volume "{name}" err=no volume plugin matched')
    return VolumeSpec(
        name,
        str(source.get("driver") or ""),
        str(source.get("volumeHandle") or ""),
        Lifecycle.PERSISTENT,
        VolumeMode.BLOCK if spec.get("volumeMode") == VolumeMode.BLOCK.value else VolumeMode.FILESYSTEM,
        str(source.get("fsType") or ""),
        tuple(spec.get("mountOptions") or ()),
        tuple(spec.get("accessModes") or ()),
        dict(source.get("volumeAttributes") or {}),
        _secret(source.get("nodeStageSecretRef")),
        _secret(source.get("nodePublishSecretRef")),
        (spec.get("nodeAffinity") or {}).get("required"),
        _secret(source.get("nodeExpandSecretRef")),
        storage_of(spec.get("capacity")),
    )


def _local_source(name: str, spec: Mapping[str, Any]) -> ApiObject | None:
    """Return a volume of the type `local` in the form of a CSI source. As in kubelet, its handle is its PV's name."""
    local = spec.get("local")
    if local is None:
        return None
    attributes = {LOCAL_PATH: str(local.get("path") or "")}
    return {
        "driver": LOCAL_DRIVER,
        "volumeHandle": name,
        "fsType": local.get("fsType"),
        "volumeAttributes": attributes,
    }


def _secret(reference: ApiObject | None) -> ObjectName | None:
    if not reference or not reference.get("name"):
        return None
    return ObjectName(reference.get("namespace") or None, reference["name"])


def _refuse_wrong_mode(pod: ApiObject, volume: ApiObject, mode: VolumeMode) -> None:
    name = _name(volume)
    if name in _uses(pod, "volumeMounts", "name") and mode is not VolumeMode.FILESYSTEM:
        raise NotYet(f"volume {name} has volumeMode {mode.value}, but is specified in volumeMounts")
    if name in _uses(pod, "volumeDevices", "name") and mode is not VolumeMode.BLOCK:
        raise NotYet(f"volume {name} has volumeMode {mode.value}, but is specified in volumeDevices")


# ---- reading a pod ---------------------------------------------------------------------------------------------------


def used_volumes(pod: ApiObject) -> list[ApiObject]:
    """Those that a container mounts, or has as a device."""
    used = _uses(pod, "volumeMounts", "name") | _uses(pod, "volumeDevices", "name")
    return [volume for volume in _spec(pod).get("volumes") or () if _name(volume) in used]


def _uses(pod: ApiObject, field_name: str, key: str) -> frozenset[str]:
    return frozenset(
        str(use.get(key, "")) for container in containers_of(pod) for use in container.get(field_name) or ()
    )


def containers_of(pod: ApiObject) -> Iterator[ApiObject]:
    for field_name in CONTAINER_LISTS:
        yield from _spec(pod).get(field_name) or ()


def _is_ours(volume: ApiObject) -> bool:
    return any(volume.get(kind) is not None for kind in CSI_SOURCES)


def _claim_name(pod: ApiObject, volume: ApiObject) -> str | None:
    if (source := volume.get("persistentVolumeClaim")) is not None:
        return str(source.get("claimName") or "")
    if volume.get("ephemeral") is not None:
        return f"{objects.name(pod)}-{_name(volume)}"
    return None


def _name(volume: ApiObject) -> str:
    return str(volume.get("name") or "")


def _spec(obj: ApiObject) -> Mapping[str, Any]:
    return obj.get("spec") or {}
