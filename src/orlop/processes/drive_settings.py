"""The flags of drives: where they are mounted, which folders may be some, and which devices may become some."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from orlop.foundation.go_flags import flag, text
from orlop.host.block.device_rules import DeviceLimits
from orlop.processes.daemon import CannotGoOn, is_plain

DEFAULT_FOLDER_ROOT: Final = "/var/lib/orlop/folders"


def patterns(value: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in value.split(",") if each.strip())


def is_plain_or_none(path: str) -> str | None:
    return is_plain(path) if path else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveSettings:
    drives_dir: str = flag(
        text,
        default="",
        metavar="DIR",
        check=is_plain_or_none,
        help="The folder below which the drives of this node are mounted; empty: serve no volumes on drives.",
    )
    folder_root: str = flag(
        text,
        default=DEFAULT_FOLDER_ROOT,
        metavar="DIR",
        check=is_plain,
        help="The folder below which `orlop drives add-folder` can make drives.",
    )
    denied_devices: tuple[str, ...] = flag(
        patterns,
        name="deny-devices",
        default="",
        metavar="PATTERN,...",
        help="Devices that never become drives: names, paths, serials, WWNs or models, with * and ?.",
    )
    allowed_devices: tuple[str, ...] = flag(
        patterns,
        name="allow-devices",
        default="",
        metavar="PATTERN,...",
        help="The only devices that can become drives; default: all but loop devices. To allow those: loop*.",
    )

    @property
    def device_limits(self) -> DeviceLimits:
        allows_loops = any(each.removeprefix("/dev/").startswith("loop") for each in self.allowed_devices)
        return DeviceLimits(self.denied_devices, self.allowed_devices, allows_loops)

    def refuse_without_root(self) -> None:
        if self.drives_dir and os.geteuid() != 0:
            raise CannotGoOn(
                "mounting volumes needs root: run it as root, or set --drives-dir= to serve no volumes on drives"
            )
