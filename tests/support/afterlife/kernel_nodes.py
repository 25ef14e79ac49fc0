"""A node with scratch folders on this kernel, put together as its process does it, and what kubelet asks of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.node_service import EphemeralNodeService
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.processes.csi_wiring import EphemeralSettings
from orlop.processes.ephemeral_wiring import EphemeralServices, serving_ephemeral
from orlop.records.ephemeral_folder import FolderRecord, burial_of, decode_record
from support.host.kernel_rooms import mount_points_of, mount_room

UID = "6355041d-f9c6-4bd6-9335-f2c8cf1ea0c7"
ID = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
WRITER = csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_WRITER
SHELVES = ("live", "retained", "trash")
CONTEXT = "csi.storage.k8s.io/"


@pytest.fixture
def node(tmp_path: Path) -> Any:
    """Working directory and kubelet's folder in one room, which is a shared mount."""
    with mount_room(tmp_path / "room") as room:
        yield KernelNode(made(room / "work"), made(room / "kubelet"))


def made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass
class KernelNode:
    workdir: Path
    kubelet: Path
    log: list[LogEntry] = field(default_factory=list)
    metrics: Metrics = field(default_factory=lambda: Metrics("test", of_process=False))

    def target(self, pod: str = UID, volume: str = "scratch") -> Path:
        return self.kubelet / f"pods/{pod}/volumes/kubernetes.io~csi/{volume}/mount"

    def pod(self, pod: str = UID, volume: str = "scratch") -> Path:
        """Kubelet makes the parent of a target, and nothing else."""
        made(self.target(pod, volume).parent)
        return self.target(pod, volume)

    def settings(self, **flags: Any) -> EphemeralSettings:
        return EphemeralSettings(
            **{
                "workdir": str(self.workdir),
                "kubelet_dir": str(self.kubelet),
                "admin_socket": str(self.kubelet.parent / "a"),
                # How full the disk of this machine is must not shorten any folder's afterlife.
                "headroom": Fraction(0),
                **flags,
            }
        )

    @asynccontextmanager
    async def running(self, **flags: Any) -> AsyncIterator[EphemeralNodeService]:
        async with self.side(**flags) as side:
            yield side.node_service

    @asynccontextmanager
    async def side(self, **flags: Any) -> AsyncIterator[EphemeralServices]:
        self.metrics = Metrics("test", of_process=False)
        runtime = Runtime(clock=SystemClock(), random=Random(1), log=collecting_log(self.log), metrics=self.metrics)
        async with serving_ephemeral(self.settings(**flags), runtime, "csi.orlop.dev", "n1") as side:
            yield side

    # ---- what is there -----------------------------------------------------------------------------------------------

    def live(self, volume_id: str = ID) -> Path:
        return self.workdir / "live" / volume_id

    def names(self, shelf: str) -> list[str]:
        return sorted(os.listdir(self.workdir / shelf))  # noqa: PTH208 - names may be any

    def volumes(self, shelf: str) -> list[str]:
        """Their ids; half-made ones as they are called."""
        buried = {name: burial_of(name) for name in self.names(shelf)}
        return sorted(burial.volume_id if burial else name for name, burial in buried.items())

    def left(self) -> list[str]:
        return sorted(f"{shelf}/{name}" for shelf in SHELVES for name in self.names(shelf))

    def buried(self, volume_id: str = ID) -> Path:
        (name,) = [name for name in self.names("retained") if name.endswith(f"_{volume_id}")]
        return self.workdir / "retained" / name

    def record(self, folder: Path) -> FolderRecord:
        return decode_record(os.getxattr(folder, "trusted.orlop.record"))

    def mounts(self) -> list[str]:
        """Mount points below kubelet's folder, also what is mounted upon each other."""
        points = sorted(mount_points_of("self"))
        return [point for point in points if point.startswith(f"{self.kubelet}/")]

    def counted(self) -> str:
        return self.metrics.render()[0].decode()


# ---- what kubelet asks -----------------------------------------------------------------------------------------------


def publish(
    target: Path,
    volume_id: str = ID,
    *,
    readonly: bool = False,
    flags: tuple[str, ...] = (),
    told: dict[str, str] | None = None,
    **attributes: str,
) -> csi_pb2.NodePublishVolumeRequest:
    """`told` is what kubelet adds to the context; attributes are those of ours that the pod sets."""
    return csi_pb2.NodePublishVolumeRequest(
        volume_id=volume_id,
        target_path=str(target),
        readonly=readonly,
        volume_capability=csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(mount_flags=flags),
            access_mode=csi_pb2.VolumeCapability.AccessMode(mode=WRITER),
        ),
        volume_context={
            f"{CONTEXT}ephemeral": "true",
            **{f"{CONTEXT}{key}": value for key, value in (told or {}).items()},
            **{f"orlop.dev/{key}": value for key, value in attributes.items()},
        },
    )


def unpublish(target: Path, volume_id: str = ID) -> csi_pb2.NodeUnpublishVolumeRequest:
    return csi_pb2.NodeUnpublishVolumeRequest(volume_id=volume_id, target_path=str(target))


def stats(target: Path, volume_id: str = ID) -> csi_pb2.NodeGetVolumeStatsRequest:
    return csi_pb2.NodeGetVolumeStatsRequest(volume_id=volume_id, volume_path=str(target))
