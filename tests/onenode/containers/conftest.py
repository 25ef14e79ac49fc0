from __future__ import annotations

from support.host.descriptors import no_leaked_descriptors
from support.host.file_systems import disk, file_systems, tmpfs, xfs
from support.host.kernel_rooms import room
from support.host.quota_kernel import quota_kernel

__all__ = ["disk", "file_systems", "no_leaked_descriptors", "quota_kernel", "room", "tmpfs", "xfs"]
