"""What the parts here are given beside the volume manager's own tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.host.plain_volume_host import PlainVolumeHost


@dataclass(frozen=True, slots=True)
class PlainTools:
    """`allocatable` is what the node has for pods, as quantities by resource."""

    volumes: VolumeTools
    host: PlainVolumeHost
    allocatable: Mapping[str, str]
