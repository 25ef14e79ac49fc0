"""What a container is to this machine: a command, who runs it, what its root holds, where its output goes.

These values travel from the process that wants a container to the one that makes it; descriptors travel beside them,
and are meant by their place in the order they were sent. Nothing here touches the kernel.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

MOST_DESCRIPTORS: Final = 250
"""The kernel passes at most 253 with one message; a few are ours."""
MOST_VOLUMES: Final = MOST_DESCRIPTORS - 8


@dataclass(frozen=True, slots=True)
class Account:
    """Who a process is."""

    user: int = 0
    group: int = 0
    more_groups: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Command:
    """A program with its arguments; it is looked for in the PATH of its environment, inside the container."""

    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    working_folder: str = "/"
    account: Account = Account()
    no_new_privileges: bool = False


@dataclass(frozen=True, slots=True)
class WindowSize:
    """Of a terminal, in characters."""

    width: int
    height: int


@dataclass(frozen=True, slots=True)
class VolumePlace:
    """Where in a container the volume with this place in the order appears."""

    path: str
    read_only: bool = False
    is_device: bool = False
    """It is a block device, of which the container gets a node of its own."""


@dataclass(frozen=True, slots=True)
class RootRequest:
    """`hidden` are absolute paths of this machine without symbolic links; they look empty from inside."""

    volumes: tuple[VolumePlace, ...] = ()
    hidden: tuple[str, ...] = ()
    writable_bytes: int = 256 << 20
    read_only: bool = False
    host_name: str = "container"


@dataclass(frozen=True, slots=True)
class LogLimits:
    """The newest file is at most so large; when it is full it takes the place of the older one."""

    file_bytes: int = 10 << 20
    line_bytes: int = 16 << 10


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    command: Command
    root: RootRequest = RootRequest()
    log_name: str = "0.log"
    log_limits: LogLimits = LogLimits()

    def encoded(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def decoded_request(text: bytes) -> ContainerRequest:
    fields = json.loads(text)
    root = fields["root"]
    volumes = tuple(VolumePlace(**volume) for volume in root.pop("volumes"))
    return ContainerRequest(
        command=decoded_command(fields["command"]),
        root=RootRequest(**{**root, "volumes": volumes, "hidden": tuple(root["hidden"])}),
        log_name=fields["log_name"],
        log_limits=LogLimits(**fields["log_limits"]),
    )


def encoded_command(command: Command) -> bytes:
    return json.dumps(asdict(command)).encode()


def decoded_command(fields: dict[str, Any] | bytes) -> Command:
    values: dict[str, Any] = json.loads(fields) if isinstance(fields, bytes) else fields
    account = values["account"]
    return Command(
        arguments=tuple(values["arguments"]),
        environment=tuple((name, value) for name, value in values["environment"]),
        working_folder=values["working_folder"],
        account=Account(account["user"], account["group"], tuple(account["more_groups"])),
        no_new_privileges=values["no_new_privileges"],
    )
