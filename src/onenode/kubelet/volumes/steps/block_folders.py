"""What kubelet makes and removes on disk for a raw block volume, in its order. Blocks; knows no driver.

    map:    device mounted at dev/<pod> → link in the pod's folder → loop device that holds it
    unmap:  loop device → link → unmounted; dev/<pod> itself goes when the driver has unpublished

`dev/<pod>` is made, empty, before the driver is asked to publish: so a kubelet that starts anew knows of every pod for
which it was asked, whatever the driver left. Kubelet makes it afterwards; nobody else can tell the difference.
`data/vol_data.json` stands before anything else of a volume and goes after all of it.
"""

from __future__ import annotations

import errno

from onenode.host.volume_host import VolumeHost
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_values import PodUid
from orlop.host.host_errors import HostError


def prepare_pod(host: VolumeHost, volume: str, pod_uid: PodUid) -> None:
    """Before the driver is asked to publish."""
    file = volume_paths.block_device(volume, pod_uid)
    host.make_folders(volume_paths.block_publish_folder(volume))
    host.make_folders(file[:-1])
    host.make_file(file)


def map_device(host: VolumeHost, volume: str, pod_uid: PodUid) -> None:
    """Map the device that the driver has published. Raise HostError if there is no device."""
    published, file = volume_paths.block_publish(volume, pod_uid), volume_paths.block_device(volume, pod_uid)
    path = host.device_at(published)
    _mount_anew(host, published, file)
    link = volume_paths.pod_device_link(pod_uid, volume)
    host.make_folders(link[:-1])
    host.link(link, path)
    host.hold_device(file)


def unmap_device(host: VolumeHost, volume: str, pod_uid: PodUid) -> None:
    """Undo `map_device`, before NodeUnpublishVolume. Parts that are absent are skipped."""
    file = volume_paths.block_device(volume, pod_uid)
    host.release_device(file)
    host.remove_link(volume_paths.pod_device_link(pod_uid, volume))
    host.unmount(file)


def forget_pod(host: VolumeHost, volume: str, pod_uid: PodUid) -> None:
    """Remove what is left after NodeUnpublishVolume.

    Raise HostError if the driver left more than an empty file: then the call has to be repeated.
    """
    published = volume_paths.block_publish(volume, pod_uid)
    if host.is_there(published):
        _remove_target(host, published)
    host.remove_file(volume_paths.block_device(volume, pod_uid))


def is_something_mapped(host: VolumeHost, volume: str, pod_uid: PodUid) -> bool:
    """What cannot be looked at, such as the device of a server that is gone, is taken for mapped."""
    places = volume_paths.block_publish(volume, pod_uid), volume_paths.block_device(volume, pod_uid)
    try:
        return any(host.is_mounted(place) for place in places)
    except HostError:
        return True


def is_anything_there(host: VolumeHost, volume: str, pod_uid: PodUid) -> bool:
    places = (
        volume_paths.block_publish(volume, pod_uid),
        volume_paths.block_device(volume, pod_uid),
        volume_paths.pod_device_link(pod_uid, volume),
    )
    return any(host.is_there(place) for place in places)


def mapped_places(host: VolumeHost, volume: str) -> tuple[Names, ...]:
    """Where the volume's device is mounted for pods."""
    folder = volume_paths.block_devices(volume)
    places = ((*folder, name) for name in sorted(host.names_in(folder) or ()))
    return tuple(place for place in places if host.is_mounted(place))


def remove_volume(host: VolumeHost, volume: str) -> None:
    """All of it, after the last pod; HostError: something is left, and the file with it."""
    host.remove_folder(volume_paths.block_publish_folder(volume))
    staging = volume_paths.block_staging(volume)
    for name in sorted(host.names_in(staging) or ()):
        _remove_target(host, (*staging, name))
    host.remove_folder(staging)
    folder = volume_paths.block_devices(volume)
    for name in sorted(host.names_in(folder) or ()):
        host.release_device((*folder, name))
        host.remove_file((*folder, name))
    host.remove_folder(folder)
    data = volume_paths.block_data(volume)
    host.remove_file(volume_paths.data_file(data))
    host.remove_folder(data)
    host.remove_folder(volume_paths.block_folder(volume))


def _mount_anew(host: VolumeHost, published: Names, file: Names) -> None:
    try:
        host.mount_device(published, file)
    except HostError as error:
        if error.errno != errno.EBUSY:
            raise
        host.release_device(file)  # it holds the device that was there before
        host.mount_device(published, file)


def _remove_target(host: VolumeHost, target: Names) -> None:
    """What a driver mounted upon and forgot: an empty file or folder, or a link. Nothing else is ever removed."""
    if host.is_mounted(target):
        raise HostError(errno.EBUSY, f"{host.path_of(target)} is still mounted")
    if host.remove_link(target):
        return
    if host.names_in(target) is not None:
        host.remove_folder(target)
    elif host.read_file(target, 1) == b"":
        host.remove_file(target)
    else:
        raise HostError(errno.EEXIST, f"{host.path_of(target)} was left by its driver: remove it")
