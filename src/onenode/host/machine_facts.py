"""What this machine is: its name and address, what it has of everything, and which boot of which system it runs.

Read from the kernel and from the system's own files, whatever of them there is; nothing is asked over the network.
"""

from __future__ import annotations

import os
import shlex
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orlop.host.kernel.disk_usage import room_on

GO_ARCHITECTURES: Final = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i686": "386",
}
"""Where the kernel and Go have different names."""
NOT_ROUTED: Final = ("192.0.2.1", 9)
"""An address for documentation: nothing is ever sent there, the kernel only says from where it would be."""
LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    hostname: str
    address: str
    cpus: int
    memory_bytes: int
    disk_bytes: int
    machine_id: str
    system_uuid: str
    boot_id: str
    kernel: str
    os_image: str
    architecture: str
    """As Go names it."""


def read_machine(folder: int) -> MachineFacts:
    """The disk is the one that the folder's descriptor is on."""
    kernel = os.uname()
    machine_id = _line("/etc/machine-id") or _line("/var/lib/dbus/machine-id")
    return MachineFacts(
        hostname=kernel.nodename.lower(),
        address=_address(),
        cpus=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        disk_bytes=room_on(folder).total_bytes,
        machine_id=machine_id,
        system_uuid=_line("/sys/class/dmi/id/product_uuid") or machine_id,
        boot_id=_line("/proc/sys/kernel/random/boot_id"),
        kernel=kernel.release,
        os_image=_os_image(),
        architecture=GO_ARCHITECTURES.get(kernel.machine, kernel.machine),
    )


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    total_bytes: int
    available_bytes: int
    """What programs could have without anything being swapped out, as the kernel estimates it."""


def read_memory() -> MemoryRoom | None:
    """None where the kernel does not say."""
    lines = dict(line.partition(":")[::2] for line in _text("/proc/meminfo").splitlines())
    with suppress(KeyError, ValueError, IndexError):
        total, available = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
        return MemoryRoom(total, available)
    return None


def _address() -> str:
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(NOT_ROUTED)
        return str(asking.getsockname()[0])
    return LOOPBACK


def _os_image() -> str:
    for line in _text("/etc/os-release").splitlines():
        key, _, value = line.partition("=")
        if key == "PRETTY_NAME":
            return _unquoted(value)
    return "Linux"


def _unquoted(value: str) -> str:
    try:
        return " ".join(shlex.split(value))
    except ValueError:
        return value.strip()


def _line(path: str) -> str:
    return _text(path).strip()


def _text(path: str) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return Path(path).read_text()
    return ""
