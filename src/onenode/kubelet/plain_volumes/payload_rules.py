"""Which files a volume has, from its pod and the objects it refers to, and why it cannot have them yet. Pure.

Paths come from a tenant: none may be absolute, hold `..` or begin with it. The texts are kubelet's; none holds anything
of a secret but the names of its keys.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from onenode.host.payload_files import Names, Payload, PayloadFile
from onenode.kubelet.node.downward_rules import NoValue, field_value, resource_value
from onenode.kubelet.plain_volumes.plain_volumes_rules import PlainKind, PlainVolume, group_of, user_of
from onenode.kubelet.volumes.desired_volumes_rules import Unread
from onenode.kubelet.volumes.volume_values import ApiObject

DEFAULT_MODE: Final = 0o644
TOKEN_MODE: Final = 0o600
"""Where it is given to somebody: the group's right to read is added when it is."""
DEFAULT_TOKEN_SECONDS: Final = 3600
LONGEST_PATH: Final = 4096
UP: Final = ".."
DOWNWARD: Final = "downwardAPI"
TOKEN: Final = "serviceAccountToken"  # noqa: S105 - the name of a field


class NoPayload(ValueError):
    """In kubelet's words."""


@dataclass(frozen=True, slots=True)
class TokenWish:
    audience: str
    seconds: int


@dataclass(frozen=True, slots=True)
class References:
    """What a volume's files are made from, by name in the pod's namespace."""

    config_maps: frozenset[str] = frozenset()
    secrets: frozenset[str] = frozenset()
    tokens: frozenset[TokenWish] = frozenset()


Read: TypeAlias = ApiObject | Unread | None
"""None: it does not exist."""


@dataclass(frozen=True, slots=True)
class PayloadObjects:
    config_maps: Mapping[str, Read] = field(default_factory=dict)
    secrets: Mapping[str, Read] = field(default_factory=dict, repr=False)
    tokens: Mapping[TokenWish, str | Unread] = field(default_factory=dict, repr=False)
    allocatable: Mapping[str, str] = field(default_factory=dict)


# ---- what must be read -----------------------------------------------------------------------------------------------


def references_of(volume: PlainVolume) -> References:
    parts = list(_parts(volume))
    return References(
        frozenset(_object_name("configMap", source) for kind, source in parts if kind == "configMap"),
        frozenset(_object_name("secret", source) for kind, source in parts if kind == "secret"),
        frozenset(token_wish(source) for kind, source in parts if kind == TOKEN),
    )


def token_wish(source: ApiObject) -> TokenWish:
    return TokenWish(str(source.get("audience") or ""), int(source.get("expirationSeconds") or DEFAULT_TOKEN_SECONDS))


def _parts(volume: PlainVolume) -> Iterator[tuple[str, ApiObject]]:
    """A projected volume has many, each of one kind; the others are one."""
    if volume.kind is not PlainKind.PROJECTED:
        yield volume.kind.field, volume.source
        return
    for source in volume.source.get("sources") or ():
        yield from ((kind, part) for kind, part in source.items() if part is not None)


def _object_name(kind: str, source: ApiObject) -> str:
    """A Secret alone is called otherwise where it is the whole volume."""
    return str(source.get("name") or (source.get("secretName") if kind == "secret" else "") or "")


# ---- what follows ----------------------------------------------------------------------------------------------------


def payload_of(pod: ApiObject, volume: PlainVolume, found: PayloadObjects) -> Payload:
    """Raises NoPayload, with all reasons there are. Of two files of one path the later one is there."""
    files: dict[Names, PayloadFile] = {}
    reasons: list[str] = []
    for kind, source in _parts(volume):
        try:
            files |= {_names(path): file for path, file in _files(pod, volume, kind, source, found)}
        except NoPayload as error:
            reasons.append(str(error))
    if reasons:
        raise NoPayload(_aggregate(reasons))
    return files


def _files(
    pod: ApiObject, volume: PlainVolume, kind: str, source: ApiObject, found: PayloadObjects
) -> Iterable[tuple[str, PayloadFile]]:
    mode = _mode(volume.source.get("defaultMode"), DEFAULT_MODE)
    match kind:
        case "configMap":
            read = found.config_maps.get(_object_name(kind, source))
            data = {} if (obj := _object("configmap", source, read)) is None else _config_map_data(obj)
            return _chosen(source, data, mode, "configmap references non-existent config key")
        case "secret":
            read = found.secrets.get(_object_name(kind, source))
            data = {} if (obj := _object("secret", source, read)) is None else _decoded(obj.get("data"))
            return _chosen(source, data, mode, "references non-existent secret key")
        case "downwardAPI":
            return _downward(pod, source, mode, found.allocatable)
        case "serviceAccountToken":
            return [_token(pod, source, mode, found)]
        case _:
            raise NoPayload(f"{kind} is not supported here as a source of files: use another one")


def _object(kind: str, source: ApiObject, read: Read) -> ApiObject | None:
    """None: it may be missing, and is."""
    name = _object_name("secret" if kind == "secret" else "configMap", source)
    if isinstance(read, Unread):
        raise NoPayload(read.reason)
    if read is None and not source.get("optional"):
        raise NoPayload(f'{kind} "{name}" not found')
    return read


def _config_map_data(obj: ApiObject) -> dict[str, bytes]:
    texts = {key: str(value).encode("utf-8", "surrogateescape") for key, value in (obj.get("data") or {}).items()}
    return {**_decoded(obj.get("binaryData")), **texts}


def _decoded(data: Mapping[str, Any] | None) -> dict[str, bytes]:
    try:
        return {key: base64.b64decode(value or "") for key, value in (data or {}).items()}
    except (binascii.Error, ValueError):
        raise NoPayload("the object's data is not base64: write it anew") from None


def _chosen(source: ApiObject, data: Mapping[str, bytes], mode: int, missing: str) -> Iterator[tuple[str, PayloadFile]]:
    items = source.get("items") or ()
    if not items:
        yield from ((key, PayloadFile(content, mode)) for key, content in data.items())
    for item in items:
        key = str(item.get("key") or "")
        if key in data:
            yield str(item.get("path") or ""), PayloadFile(data[key], _mode(item.get("mode"), mode))
        elif not source.get("optional"):
            raise NoPayload(f"{missing}: {key}")


def _downward(
    pod: ApiObject, source: ApiObject, mode: int, allocatable: Mapping[str, str]
) -> list[tuple[str, PayloadFile]]:
    files, reasons = [], []
    for item in source.get("items") or ():
        try:
            content = _downward_value(pod, item, allocatable).encode("utf-8", "surrogateescape")
            files.append((str(item.get("path") or ""), PayloadFile(content, _mode(item.get("mode"), mode))))
        except NoValue as error:
            reasons.append(str(error))
    if reasons:
        raise NoPayload(_aggregate(reasons))
    return files


def _downward_value(pod: ApiObject, item: ApiObject, allocatable: Mapping[str, str]) -> str:
    if (reference := item.get("fieldRef")) is not None:
        return field_value(pod, str(reference.get("fieldPath") or ""))
    if (reference := item.get("resourceFieldRef")) is not None:
        return resource_value(pod, reference, allocatable)
    return ""


def _token(pod: ApiObject, source: ApiObject, mode: int, found: PayloadObjects) -> tuple[str, PayloadFile]:
    token = found.tokens.get(token_wish(source), Unread("it was not asked for"))
    if isinstance(token, Unread):
        raise NoPayload(f"failed to fetch token: {token.reason}")
    owner = user_of(pod)
    is_given = owner is not None or group_of(pod) is not None
    return str(source.get("path") or ""), PayloadFile(token.encode(), TOKEN_MODE if is_given else mode, owner)


def _mode(value: Any, otherwise: int) -> int:
    return value & 0o777 if isinstance(value, int) else otherwise


def _aggregate(reasons: list[str]) -> str:
    """As Go prints several errors: each once."""
    each = list(dict.fromkeys(reasons))
    return each[0] if len(each) == 1 else f"[{', '.join(each)}]"


# ---- paths -----------------------------------------------------------------------------------------------------------


def _names(path: str) -> Names:
    if (why := _why_unfit(path)) is not None:
        raise NoPayload(f"invalid path: {why}")
    return tuple(name for name in path.split("/") if name not in {"", "."})


def _why_unfit(path: str) -> str | None:
    names = path.split("/")
    if not path or not any(name not in {"", "."} for name in names):
        return f'must not be empty: "{path}"'
    if path.startswith("/"):
        return f"must be relative path: {path}"
    if len(path) > LONGEST_PATH:
        return f"must be less than or equal to {LONGEST_PATH} characters"
    if UP in names:
        return f"must not contain '..': {path}"
    first = next(name for name in names if name not in {"", "."})
    if first.startswith(UP):
        return f"must not start with '..': {path}"
    return None
