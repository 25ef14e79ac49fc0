"""Take over the folders of the previous driver, when we run with its name and its working directory.

A folder that a pod still has mounted becomes live, with the targets it is mounted at, so that kubelet's unpublish
finds it. Every other folder is buried with a new lifespan, so that an upgrade loses no files. This module erases
nothing.

It runs once, before the index is read, and can be repeated after a kill at any point.
"""

from __future__ import annotations

import re
from typing import Final

from orlop.driver.ephemeral.folder_index import live_place, retained_place
from orlop.driver.ephemeral.publish_request_rules import ALWAYS, DEFAULT_MODE
from orlop.foundation.structured_log import Log
from orlop.host.folders.peer_folders import PeerFolder, PeerFolders, PeerMounts
from orlop.host.host_errors import HostError
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace
from orlop.records.ephemeral_folder import Burial, FolderOptions, FolderRecord, Owner, encode_record

PEER_DRIVER: Final = "katbox.csi.paypal.com"
_POD_TARGET: Final = re.compile(r"pods/([^/]+)/volumes/kubernetes\.io~csi/[^/]+/mount")


class PeerStillRuns(Exception):
    """The previous driver still runs. Two drivers must not work on the same folders."""


def take_over(host: LinuxNodeHost, now: float, lifespan: float, log: Log) -> None:
    """Move all folders of the previous driver to our shelves. Raises PeerStillRuns."""
    peer = host.workdir.peer_folders()
    if not peer.are_there():
        return
    if peer.is_peer_running():
        raise PeerStillRuns("the previous driver of this working directory still runs: stop it first")
    listing = peer.listing()
    for stranger in listing.strangers:
        log.warning("not taken over", folder=stranger, error="its name is not the name of a volume")
    # Take the snapshot after the listing: an older snapshot could miss the mount of a folder in the listing.
    mounts = peer.look_at_mounts()
    for folder in listing.volumes:
        if mounts.hold_pod_folder(folder):
            log.warning("not taken over", folder=str(folder), error="the pod's folder is a mount: unmount it")
            continue
        record = _record(folder, _targets(host, mounts, folder), now, lifespan)
        burial = Burial(folder.volume_id, round(now, 3), round(lifespan, 3))
        place = live_place(folder.volume_id) if mounts.hold(folder) else retained_place(burial)
        _take(host, peer, folder, record, place, log)


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
    options = FolderOptions(lifespan_seconds=lifespan, own_lifespan=False, mode=DEFAULT_MODE, mount_options=ALWAYS)
    pods = (match[1] for target in targets if (match := _POD_TARGET.fullmatch(target)))
    owner = Owner(pod_uid=folder.pod_uid or next(pods, ""))
    return FolderRecord(folder.volume_id, owner, options, created_at=now, targets=targets)


def _targets(host: LinuxNodeHost, mounts: PeerMounts, folder: PeerFolder) -> tuple[str, ...]:
    """Return the targets that the folder is mounted at, as paths below kubelet's directory."""
    below = [
        point.removeprefix(f"{root}/")
        for point in mounts.points_of(folder)
        for root in host.kubelet_dir.paths
        if point.startswith(f"{root}/")
    ]
    return tuple(sorted({target for target in below if _POD_TARGET.fullmatch(target)}))
