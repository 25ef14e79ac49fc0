"""What the parts here are given beside the volume manager's own tools."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.host.plain_volume_host import PlainVolumeHost

HOST_PATHS_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class PlainTools:
    """`allocatable` is what the node has for pods, as quantities by resource.

    `host_paths` is held by who looks at one: they may lie on any disk of the machine, also on one that hangs, and
    threads are left for everybody else.
    """

    volumes: VolumeTools
    host: PlainVolumeHost
    allocatable: Mapping[str, str]
    host_paths: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HOST_PATHS_AT_ONCE))
