"""A fake machine with what only a kubelet keeps there: payload folders, volumes in memory, files of the host."""

from __future__ import annotations

from onenode.host.payload_files import FileKind, FolderPermissions, Payload
from orlop.host.node_host import Names
from orlop.testing.fake_host import FakeMachine


class FakeKubeletMachine(FakeMachine):
    """What stays of the machine when its kubelet dies."""

    def __init__(self) -> None:
        super().__init__()
        self.payloads: dict[Names, Payload] = {}
        """Files that kubelet wrote into a volume, by the volume's folder."""
        self.access_of: dict[Names, FolderPermissions] = {}
        """Mode and owner of volumes that kubelet makes itself."""
        self.memory_sizes: dict[Names, int] = {}
        """Limits of volumes in memory."""
        self.host_files: dict[str, FileKind] = {"/": FileKind.FOLDER}
        """Files of the host itself, by path."""
        self.disk_formats: dict[str, str] = {}
        """The file systems of its disks, by path."""
        self.refused_removals: list[Names] = []
        """Mounted places that kubelet tried to remove. A kernel refuses that only where it sees the mount itself."""

    def reboot(self) -> None:
        super().reboot()
        for volume in self.memory_sizes:
            self.payloads.pop(volume, None)
            self.access_of.pop(volume, None)
        self.memory_sizes.clear()
