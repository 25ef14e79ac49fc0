from __future__ import annotations

from support.descriptors import no_leaked_descriptors
from support.file_systems import disk, file_systems, tmpfs, xfs
from support.kernel_rooms import room
from support.quota_kernel import quota_kernel

__all__ = ["disk", "file_systems", "no_leaked_descriptors", "quota_kernel", "room", "tmpfs", "xfs"]
