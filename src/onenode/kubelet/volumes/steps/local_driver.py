"""Serve local volumes: folders or disks of this machine that a PersistentVolume names. A part of kubelet.

It takes the requests that CSI drivers get, so that staging, restarts and unmounts are those of every volume. The texts
of its failures are kubelet's. A folder is bound into the pod; a disk is formatted if it is blank, mounted once for the
node, and bound from there. A raw block volume is a link to its device. As in kubelet, it is not checked what is mounted
at the folder: the pod gets what is there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from onenode.host.payload_files import FileKind, HostPath, Names
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.csi_request_rules import STAGES
from onenode.kubelet.volumes.steps.outcome_rules import FailureKind, StepFailed
from onenode.kubelet.volumes.volume_seams import KubeletDisk
from onenode.kubelet.volumes.volume_values import LOCAL_PATH
from orlop.csi.proto import csi_pb2
from orlop.csi.rpc_type import Rpc
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import WORDS, MountOptions, parse_mount_options

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
T = TypeVar("T")
NEW_MOUNTER: Final = "MountVolume.NewMounter initialization failed"
WRONG_KIND: Final = "only directory and block device are supported"
PLAIN: Final = MountOptions(no_suid=False, no_devices=False)


class LocalDriver:
    """`prefix` is what an event about a failure of this step begins with."""

    def __init__(self, disk: KubeletDisk, prefix: str) -> None:
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._prefix = prefix

    async def capabilities(self, _asking: str = "") -> frozenset[str]:
        return frozenset({STAGES})

    async def call(self, method: Rpc[Request, Response], request: Request, _asking: str = "") -> Response:
        match request:
            case csi_pb2.NodeStageVolumeRequest() if request.volume_capability.HasField("mount"):
                await self._stage(request)
            case csi_pb2.NodePublishVolumeRequest() if request.volume_capability.HasField("mount"):
                await self._publish(request)
            case csi_pb2.NodePublishVolumeRequest():
                await self._link(request)
            case csi_pb2.NodeUnpublishVolumeRequest():
                await self._unpublish(self._names(request.target_path))
            case csi_pb2.NodeUnstageVolumeRequest():
                await self._do(partial(self._host.unmount, self._names(request.staging_target_path)))
        return method.response()

    async def _stage(self, request: Any) -> None:
        path, target = _path(request), self._names(request.staging_target_path)
        options = request.volume_capability.mount
        if await self._kind(path) is FileKind.BLOCK_DEVICE:
            mount = partial(self._host.mount_disk, path, target, options.fs_type, tuple(options.mount_flags))
            if not await self._do(partial(self._host.is_mounted, target)):
                await self._do(mount)

    async def _publish(self, request: Any) -> None:
        path = _path(request)
        source = path if await self._kind(path) is FileKind.FOLDER else self._names(request.staging_target_path)
        # The other options are those of a file system: the mount of the disk has them, a bind can have none.
        words = [word for word in request.volume_capability.mount.mount_flags if word in WORDS]
        if request.readonly:
            words.append("ro")
        await self._do(
            partial(self._host.bind, source, self._names(request.target_path), parse_mount_options(words, PLAIN))
        )

    async def _link(self, request: Any) -> None:
        path = _path(request)
        kind = await self._do(partial(self._host.kind_at, path))
        if kind is None:
            raise StepFailed(texts.EVAL_LINKS, texts.nothing_to_resolve(path.path), FailureKind.FINAL)
        if kind is not FileKind.BLOCK_DEVICE:
            why = f"{path.path} is {kind.value}, not a block device"
            raise StepFailed(texts.MAP_BLOCK_VOLUME, why, FailureKind.FINAL)
        await self._do(partial(self._host.link, self._names(request.target_path), path.path))

    async def _unpublish(self, target: Names) -> None:
        # A raw block volume is a link, any other is a mount.
        if not await self._do(partial(self._host.remove_link, target)):
            await self._do(partial(self._host.unmount, target))

    async def _kind(self, path: HostPath) -> FileKind:
        """Return the kind of a path that can be mounted. Like kubelet, check this before every mount."""
        try:
            kind = await self._in_thread(partial(self._host.kind_at, path))
        except HostError as error:
            raise StepFailed(NEW_MOUNTER, str(error), FailureKind.FINAL) from None
        if kind is None:
            raise StepFailed(NEW_MOUNTER, f'path "{path.path}" does not exist', FailureKind.FINAL)
        if kind not in {FileKind.FOLDER, FileKind.BLOCK_DEVICE}:
            raise StepFailed(NEW_MOUNTER, WRONG_KIND, FailureKind.FINAL)
        return kind

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await self._in_thread(work)
        except HostError as error:
            # Final: the call has ended, and the caller checks whether something is mounted.
            raise StepFailed(self._prefix, str(error), FailureKind.FINAL) from None

    def _names(self, path: str) -> Names:
        """Return the names, below kubelet's folder, of a path in a request."""
        return tuple(path.removeprefix(self._host.path_of(())).strip("/").split("/"))


def _path(request: Any) -> HostPath:
    return HostPath(request.volume_context[LOCAL_PATH])
