"""What is left of a pod's volumes goes, found by its folders alone: those of an earlier life are no different. Blocks.

Order: parts of volumes (subPaths) are unmounted → each volume is unmounted and erased → the folders, where they are
empty. Volumes of drivers and what is mounted of them are not touched: their folders say which they are.
"""

from __future__ import annotations

import threading

from orlop.embedded.kubelet.plain_volumes.plain_volumes_rules import FOLDERS
from orlop.embedded.kubelet.volumes import volume_paths
from orlop.embedded.kubelet.volumes.subpaths import clean_subpaths
from orlop.embedded.kubelet.volumes.volume_paths import Names
from orlop.host.errors import HostError
from orlop.host.plain_volume_host import PlainVolumeHost
from orlop.host.volume_host import VolumeHost


def remove_volumes(host: VolumeHost, plain: PlainVolumeHost, pod_uid: str, stop: threading.Event) -> list[str]:
    """Sentences about what stays; none: all of it is gone. What hangs on one volume holds up no other."""
    left: list[str] = []
    for volume in sorted(_with_subpaths(host, pod_uid)):
        try:
            clean_subpaths(host, pod_uid, volume)
        except HostError as error:
            left.append(str(error))
    _remove_if_empty(host, volume_paths.all_subpaths(pod_uid))
    if not left:
        for folder in FOLDERS:
            left += _remove_all_in(host, plain, (*volume_paths.pod_volumes(pod_uid), folder), stop)
    _remove_if_empty(host, volume_paths.pod_volumes(pod_uid))
    _remove_if_empty(host, volume_paths.pod_folder(pod_uid))
    return left


def _with_subpaths(host: VolumeHost, pod_uid: str) -> frozenset[str]:
    """A driver's volume has its folder for as long as parts of it are mounted."""
    of_drivers = host.names_in(volume_paths.pod_csi_volumes(pod_uid)) or frozenset()
    return (host.names_in(volume_paths.all_subpaths(pod_uid)) or frozenset()) - of_drivers


def _remove_all_in(host: VolumeHost, plain: PlainVolumeHost, folder: Names, stop: threading.Event) -> list[str]:
    left = []
    for name in sorted(plain.volumes_in(folder)):
        try:
            plain.remove((*folder, name), stop)
        except HostError as error:
            left.append(str(error))
    _remove_if_empty(host, folder)
    return left


def _remove_if_empty(host: VolumeHost, folder: Names) -> None:
    """What somebody puts there meanwhile stays, with the folder."""
    try:
        if host.names_in(folder) == frozenset():
            host.remove_folder(folder)
    except HostError:
        return
