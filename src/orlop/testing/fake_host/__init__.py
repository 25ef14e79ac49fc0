"""A node's machine in memory: keeps the contract of `host/node_host`, for programs that are simulated or killed.

    machine = FakeMachine()                            # what stays when a process dies: disk, mounts, kubelet's folders
    machine.kubelet_makes(("pods", "u1", "volumes"))
    host = FakeNodeHost(machine, points)               # what one process has of it; each change is an effect
    machine.faults.fail("bind", errno.EIO)             # and may fail

Tests play kubelet, tenants and other namespaces with the machine's own functions, which are no effects. Power loss,
symbolic links and descriptors are not modelled: test those with the real host.
"""

from orlop.testing.fake_host.fake_drive_host import FakeDisk, FakeDriveHost
from orlop.testing.fake_host.fake_drive_volumes import FakeDriveVolumes
from orlop.testing.fake_host.fake_drives import FakeDrive, FakeFolderDrives, FakeVolume
from orlop.testing.fake_host.fake_node_host import FakeNodeHost
from orlop.testing.fake_host.fake_static_host import FakeStaticDisk, FakeStaticHost
from orlop.testing.fake_host.faults import Faults
from orlop.testing.fake_host.machine import FakeFolder, FakeMachine, FakeMount

__all__ = [
    "FakeDisk",
    "FakeDrive",
    "FakeDriveHost",
    "FakeDriveVolumes",
    "FakeFolder",
    "FakeFolderDrives",
    "FakeMachine",
    "FakeMount",
    "FakeNodeHost",
    "FakeStaticDisk",
    "FakeStaticHost",
    "FakeVolume",
    "Faults",
]
