"""Takes over the folders of the driver that came before, when we are given its name and its working directory.

What a pod still has mounted becomes a live folder, with the targets it is mounted at, so that kubelet's unpublish finds
it. All else is buried: its afterlife begins now, because nobody shall lose files by an upgrade. Nothing is erased here.

Done once, before the book is read; safe to repeat after a kill at any point.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from orlop.driver.ephemeral.folder_work import live_place, retained_place
from orlop.driver.ephemeral.publish_request_rules import ALWAYS, DEFAULT_MODE
from orlop.foundation.structured_log import Log
from orlop.host.errors import HostError
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace, Names
from orlop.host.peer_folders import PeerFolder, PeerFolders
from orlop.records.ephemeral_folder import (
    Burial,
    FolderOptions,
    FolderRecord,
    Owner,
    encode_record,
    objection_to_volume_id,
)

PEER_DRIVER: Final = "katbox.csi.paypal.com"


class PeerStillRuns(Exception):
    """Two drivers must not work on the same folders."""


def take_over(host: LinuxNodeHost, now: float, lifespan: float, log: Log) -> None:
    peer = host.workdir.peer_folders()
    if not peer.are_there():
        return
    if peer.is_peer_running():
        raise PeerStillRuns("the driver whose folders are to be taken over still runs: stop it first")
    mounted = peer.mounted()
    for folder in peer.found():
        if objection := objection_to_volume_id(folder.volume_id):
            log.warning("not taken over", folder=str(folder), error=f"its name is no volume's: {objection}")
            continue
        record = _record(folder, tuple(_targets(host, peer, folder)), now, lifespan)
        is_live = bool(record.targets) or folder in mounted
        burial = Burial(folder.volume_id, round(now, 3), round(lifespan, 3))
        _take(host, peer, folder, record, live_place(folder.volume_id) if is_live else retained_place(burial), log)


def _take(
    host: LinuxNodeHost, peer: PeerFolders, folder: PeerFolder, record: FolderRecord, to: FolderPlace, log: Log
) -> None:
    try:
        peer.take(folder, encode_record(record), host.workdir.shelf(to.state), to.name)
    except HostError as error:
        log.warning("not taken over", folder=str(folder), error=error)
        return
    log.info("taken over", folder=str(folder), to=str(to), targets=len(record.targets))


def _record(folder: PeerFolder, targets: tuple[str, ...], now: float, lifespan: float) -> FolderRecord:
    options = FolderOptions(lifespan_seconds=lifespan, mode=DEFAULT_MODE, mount_options=ALWAYS)
    return FolderRecord(folder.volume_id, Owner(pod_uid=folder.pod_uid), options, created_at=now, targets=targets)


def _targets(host: LinuxNodeHost, peer: PeerFolders, folder: PeerFolder) -> Iterator[str]:
    """Where kubelet had it mounted: the peer bound the folder itself, so its root is the folder."""
    volumes: Names = ("pods", folder.pod_uid, "volumes", "kubernetes.io~csi")
    for name in sorted(host.kubelet_dir.names_in(volumes) or ()):
        target = (*volumes, name, "mount")
        at = host.kubelet_dir.mounted_at(target)
        if at is not None and at.root == peer.identity(folder):
            yield "/".join(target)
