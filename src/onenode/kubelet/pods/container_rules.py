"""What of a pod's spec can be run on this machine, and as what: from a container's spec to a request. Pure.

Images are not pulled: a container's program is one of this machine's, so the pod must name its command.
Fields that this kubelet does not implement are listed, to be reported; those that are dangerous to ignore are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from onenode.containers.container_request import Account, Command, ContainerRequest, RootRequest, VolumePlace
from onenode.host.payload_files import Origin
from onenode.kubelet.plain_volumes.plain_volumes_rules import PlainKind
from onenode.kubelet.pods.environment_rules import (
    BadEnvironment,
    EnvironmentSources,
    environment_of,
    expanded,
    missing_names,
)
from onenode.kubelet.pods.pod_status_rules import pod_text
from onenode.kubelet.volumes.desired_volumes_rules import CSI_SOURCES
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube.objects import name

CONFIG_ERROR: Final = "CreateContainerConfigError"
CREATE_ERROR: Final = "CreateContainerError"
IMAGE_NOTE: Final = (
    "Images are not pulled here: the commands of this pod are programs of this machine, in a root of their own."
)
LONGEST_HOST_NAME: Final = 63
DEFAULT_WRITABLE_BYTES: Final = 256 << 20
LEAST_WRITABLE_BYTES: Final = 1 << 20

Names = tuple[str, ...]
"""Names below the kubelet's folder."""


@dataclass(frozen=True, slots=True)
class DeviceSource:
    names: Names
    read_only: bool


@dataclass(frozen=True, slots=True)
class VolumeSources:
    """Where a pod's volumes are: by the volume's name, and for a subPath by container and place in its mounts."""

    volumes: Mapping[str, Origin] = field(default_factory=dict)
    sub_paths: Mapping[tuple[str, int], Names] = field(default_factory=dict)
    devices: Mapping[str, DeviceSource] = field(default_factory=dict)
    """Raw block volumes."""
    read_only: frozenset[str] = frozenset()
    """Those that nobody may write to, whatever a container asks for."""


@dataclass(frozen=True, slots=True)
class SubPathWish:
    """A part of a volume that one of a container's mounts asks for; `index` is the mount's place among them."""

    index: int
    volume: str
    path: str


@dataclass(frozen=True, slots=True)
class Runnable:
    request: ContainerRequest
    volumes: tuple[Origin, ...]


class NotRunnable(ValueError):
    """It can never run as it is asked for; `reason` is shown in kubectl's STATUS, the sentence beside it."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ContainerInputs:
    """What a container's request is made from besides its spec. `hidden` are paths of this machine."""

    environment: EnvironmentSources = field(default_factory=EnvironmentSources)
    volumes: VolumeSources = field(default_factory=VolumeSources)
    hidden: tuple[str, ...] = ()


def container_request(
    pod: Mapping[str, Any], container: Mapping[str, Any], attempt: int, around: ContainerInputs
) -> Runnable:
    """Raises `NotRunnable`."""
    _refuse_what_cannot_be(pod, container)
    try:
        environment = environment_of(pod, container, around.environment)
    except BadEnvironment as error:
        raise NotRunnable(CONFIG_ERROR, str(error)) from error
    places, sources = _mounts(pod, container, around.volumes)
    devices, device_sources = _devices(container, around.volumes)
    security = container.get("securityContext") or {}
    command = Command(
        arguments=_arguments(container, environment),
        environment=tuple(environment.items()),
        working_folder=container.get("workingDir") or "/",
        account=account_of(pod, container),
        no_new_privileges=security.get("allowPrivilegeEscalation") is False,
    )
    root = RootRequest(
        volumes=(*places, *devices),
        hidden=around.hidden,
        writable_bytes=_writable_bytes(container),
        read_only=bool(security.get("readOnlyRootFilesystem")),
        host_name=(pod["spec"].get("hostname") or name(pod))[:LONGEST_HOST_NAME].rstrip("-."),
    )
    return Runnable(ContainerRequest(command, root, f"{attempt}.log"), (*sources, *device_sources))


def _refuse_what_cannot_be(pod: Mapping[str, Any], container: Mapping[str, Any]) -> None:
    who = container["name"]
    if not container.get("command"):
        sentence = (
            f"no command specified: images are not pulled here, so that of {container.get('image') or 'the image'} "
            f'is not known. Set "command" of container "{who}" to a program of this machine.'
            f"{_advice_on_args(container)}"
        )
        raise NotRunnable(CREATE_ERROR, sentence)
    is_init = any(one["name"] == who for one in pod["spec"].get("initContainers") or ())
    if is_init and container.get("restartPolicy"):
        sentence = f'init container "{who}" has a restartPolicy: sidecars are not supported here; make it a container.'
        raise NotRunnable(CONFIG_ERROR, sentence)


def _advice_on_args(container: Mapping[str, Any]) -> str:
    """`kubectl run POD --image=… -- sh` is typed by everybody, and makes args of it."""
    if not container.get("args"):
        return ""
    return ' Its "args" alone are not enough: with kubectl run, write --command before the --, as in "--command -- sh".'


def _arguments(container: Mapping[str, Any], environment: Mapping[str, str]) -> tuple[str, ...]:
    words = (*container["command"], *(container.get("args") or ()))
    return tuple(expanded(word, environment) for word in words)


# ---- who -------------------------------------------------------------------------------------------------------------


def account_of(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Account:
    """The container's word over the pod's; root where nobody says otherwise, as most images have it."""
    of_pod, own = pod["spec"].get("securityContext") or {}, container.get("securityContext") or {}
    merged = {**of_pod, **own}
    user, group = merged.get("runAsUser"), merged.get("runAsGroup") or 0
    _check_non_root(pod, container, user, must=bool(merged.get("runAsNonRoot")))
    groups = [*(of_pod.get("supplementalGroups") or ()), of_pod.get("fsGroup")]
    return Account(user or 0, group, tuple(dict.fromkeys(one for one in groups if one is not None)))


def _check_non_root(pod: Mapping[str, Any], container: Mapping[str, Any], user: int | None, *, must: bool) -> None:
    if not must or user:
        return
    where = f'(pod: "{pod_text(pod)}", container: {container["name"]})'
    why = (
        "container has runAsNonRoot and image will run as root"
        if user is None
        else ("container's runAsUser breaks non-root policy")
    )
    raise NotRunnable(CONFIG_ERROR, f"{why} {where}")


# ---- what it sees ----------------------------------------------------------------------------------------------------


def _mounts(
    pod: Mapping[str, Any], container: Mapping[str, Any], sources: VolumeSources
) -> tuple[tuple[VolumePlace, ...], tuple[Origin, ...]]:
    places, found = [], []
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        read_only = bool(mount.get("readOnly")) or mount["name"] in sources.read_only
        places.append(VolumePlace(_path_in_container(container, "mountPath", mount["mountPath"]), read_only))
        if (source := _source(container, index, mount, sources)) is None:
            raise NotRunnable(CONFIG_ERROR, _not_served(pod, container, mount["name"]))
        found.append(source)
    return tuple(places), tuple(found)


def _devices(container: Mapping[str, Any], sources: VolumeSources) -> tuple[tuple[VolumePlace, ...], tuple[Names, ...]]:
    places, found = [], []
    for device in container.get("volumeDevices") or ():
        path, volume = device["devicePath"], device["name"]
        if not path.startswith("/"):
            raise NotRunnable(CONFIG_ERROR, f"error DevicePath `{path}` must be an absolute path")
        if (source := sources.devices.get(volume)) is None:
            who = container["name"]
            raise NotRunnable(CONFIG_ERROR, f'cannot find volume "{volume}" to pass into container "{who}"')
        where = _path_in_container(container, "devicePath", path)
        places.append(VolumePlace(where, source.read_only, is_device=True))
        found.append(source.names)
    return tuple(places), tuple(found)


def sub_path_wishes(
    pod: Mapping[str, Any], container: Mapping[str, Any], sources: EnvironmentSources
) -> tuple[SubPathWish, ...]:
    """What its mounts ask for, with its variables filled in. Raises `NotRunnable`."""
    found = []
    for index, mount in enumerate(container.get("volumeMounts") or ()):
        path = mount.get("subPath") or _expanded_sub_path(pod, container, mount.get("subPathExpr"), sources)
        if path:
            found.append(SubPathWish(index, mount["name"], _checked_sub_path(path)))
    return tuple(found)


def _expanded_sub_path(
    pod: Mapping[str, Any], container: Mapping[str, Any], text: str | None, sources: EnvironmentSources
) -> str:
    if not text:
        return ""
    try:
        environment = environment_of(pod, container, sources)
    except BadEnvironment as error:
        raise NotRunnable(CONFIG_ERROR, str(error)) from error
    if missing := missing_names(text, environment):
        raise NotRunnable(CONFIG_ERROR, f'missing value for "{missing[0]}"')
    return expanded(text, environment)


def _checked_sub_path(path: str) -> str:
    """Variables may have brought in what the API server does not let pass."""
    if path.startswith("/"):
        raise NotRunnable(CONFIG_ERROR, f"error SubPath `{path}` must not be an absolute path")
    if ".." in path.split("/"):
        raise NotRunnable(CONFIG_ERROR, f"unable to provision SubPath `{path}`: must not contain '..'")
    return path


def no_sub_path(container: Mapping[str, Any], volume: str) -> NotRunnable:
    sentence = f'failed to prepare subPath for volumeMount "{volume}" of container "{container["name"]}"'
    return NotRunnable(CONFIG_ERROR, sentence)


def _path_in_container(container: Mapping[str, Any], what: str, path: str) -> str:
    """A relative one is meant from the root, as kubelet takes it."""
    names = [part for part in path.split("/") if part not in {"", "."}]
    if not names or ".." in names or "\0" in path:
        sentence = f'{what} "{path}" of container "{container["name"]}" must lead somewhere below /, without "..".'
        raise NotRunnable(CONFIG_ERROR, sentence)
    return "/" + "/".join(names)


def _source(
    container: Mapping[str, Any], index: int, mount: Mapping[str, Any], sources: VolumeSources
) -> Origin | None:
    who, volume = container["name"], mount["name"]
    if mount.get("subPath") or mount.get("subPathExpr"):
        if (who, index) not in sources.sub_paths:
            raise no_sub_path(container, volume)
        return sources.sub_paths[who, index]
    return sources.volumes.get(volume)


def _not_served(pod: Mapping[str, Any], container: Mapping[str, Any], volume: str) -> str:
    asked: Mapping[str, Any] = next((one for one in pod["spec"].get("volumes") or () if one["name"] == volume), {})
    kinds = [kind for kind, source in asked.items() if kind != "name" and source is not None]
    what = f"volumes of the kind {kinds[0]}" if kinds else "volumes of this kind"
    served = ", ".join((*CSI_SOURCES, *(kind.field for kind in PlainKind)))
    return (
        f'volumeMount "{volume}" of container "{container["name"]}": {what} are not served here. Served are {served}.'
    )


def _writable_bytes(container: Mapping[str, Any]) -> int:
    limit = ((container.get("resources") or {}).get("limits") or {}).get("ephemeral-storage")
    try:
        return max(LEAST_WRITABLE_BYTES, Quantity.parse(str(limit)).value()) if limit else DEFAULT_WRITABLE_BYTES
    except InvalidQuantity:
        return DEFAULT_WRITABLE_BYTES


# ---- what nobody does ------------------------------------------------------------------------------------------------

_OF_POD: Final = (
    *("activeDeadlineSeconds", "hostPID", "hostIPC", "shareProcessNamespace", "hostAliases", "dnsConfig"),
    *("ephemeralContainers", "runtimeClassName", "readinessGates"),
)
_OF_CONTAINER: Final = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle", "stdin", "tty")
_OF_SECURITY: Final = (
    *("privileged", "capabilities", "seLinuxOptions", "seccompProfile", "appArmorProfile", "procMount", "sysctls"),
    "windowsOptions",
)


def unsupported_fields(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """What the pod asks for and does not get, as paths in its spec."""
    spec = pod["spec"]
    return (
        *(f"spec.{field}" for field in _OF_POD if spec.get(field)),
        *_security_fields("spec", spec),
        *_container_fields(spec, "initContainers"),
        *_container_fields(spec, "containers"),
    )


def _container_fields(spec: Mapping[str, Any], kind: str) -> Iterator[str]:
    for container in spec.get(kind) or ():
        path = f"spec.{kind}{{{container['name']}}}"
        yield from (f"{path}.{field}" for field in _OF_CONTAINER if container.get(field))
        yield from _security_fields(path, container)
        limits = (container.get("resources") or {}).get("limits") or {}
        yield from (f"{path}.resources.limits.{one}" for one in limits if one != "ephemeral-storage")


def _security_fields(path: str, part: Mapping[str, Any]) -> Iterator[str]:
    security = part.get("securityContext") or {}
    yield from (f"{path}.securityContext.{field}" for field in _OF_SECURITY if security.get(field))
