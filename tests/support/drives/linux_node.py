"""A node with one drive on this kernel, as a process has it that has just started, and what kubelet does beside it."""

from __future__ import annotations

import os
from pathlib import Path

from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.foundation.clock import SystemClock
from orlop.host.block import image_devices
from orlop.host.block.image_formats import ImageFormatter
from orlop.host.drives.drive_files import LinuxDriveRoot
from orlop.host.drives.linux_drive_volumes import LinuxDriveVolumes
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.node_host import Names
from orlop.records.drive_record import DriveRecord
from support.drives.node_drives import DRIVE, READY
from support.drives.volume_node import DEVICE, OTHER_DEVICE, OTHER_TARGET, STAGING, TARGET, Node


class LinuxNode(Node):
    """One process."""

    def __init__(self, kubelet: Path, drive: Path, record: DriveRecord) -> None:
        self.kubelet, self.drive, self.record = kubelet, drive, record
        for folder in (STAGING, TARGET[:-1], OTHER_TARGET[:-1], DEVICE[:-1]):
            kubelet.joinpath(*folder).mkdir(parents=True, exist_ok=True)
        kubelet_dir = LinuxKubeletDir(str(kubelet))
        table = DriveTable()
        super().__init__(table, kubelet_dir, kubelet=str(kubelet))
        self.plug()

    def plug(self) -> None:
        """Open the drive, as the watch of drives does."""
        root = os.open(self.drive, os.O_RDONLY | os.O_DIRECTORY)
        volumes = LinuxDriveVolumes(root, self.kubelet_dir, ImageFormatter(), SystemClock())  # type: ignore[arg-type]
        self.table.put(DRIVE, READY, OpenDrive(self.record, LinuxDriveRoot(str(self.drive), root), volumes))

    def restarted(self) -> LinuxNode:
        """The next process. Both see what is mounted."""
        return LinuxNode(self.kubelet, self.drive, self.record)

    def close(self) -> None:
        self.table.close()
        self.kubelet_dir.close()  # type: ignore[attr-defined]

    def detach_lost(self, volume_id: str) -> None:
        image_devices.detach_lost(str(self.drive), f"/volumes/{volume_id}/image")

    def path(self, names: Names) -> Path:
        return self.kubelet.joinpath(*names)

    def take_apart(self) -> None:
        """End all that the tests use, whatever is left of it."""
        for target in (TARGET, OTHER_TARGET, DEVICE, OTHER_DEVICE, STAGING):
            self.kubelet_dir.unmount(target)
        for drive in self.table.open_drives():
            for each in drive.volumes.listing().folders:
                drive.volumes.detach(each.name)
        self.close()
