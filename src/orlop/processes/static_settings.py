"""The flags of the worker and of the master of static volumes, which also `orlop node` and `orlop controller` have."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import at_least, flag, integer, text
from orlop.foundation.quantity import Quantity
from orlop.processes.daemon import CannotGoOn, is_absolute, is_absolute_or_none, is_not_negative, is_size, is_some_time
from orlop.records.static_policy import STATIC_NAMESPACE

DEFAULT_CONFIGURATION: Final = "/etc/provisioner/config"
"""Of the processes that do nothing else: where today's product has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSource:
    """What worker and master of a cluster must have in common."""

    static_config: str = flag(
        text,
        default="",
        metavar="DIR",
        check=is_absolute_or_none,
        help="The folder of the configuration of static volumes, a ConfigMap of local-static-provisioner's keys; "
        "empty: serve no static volumes.",
    )
    static_namespace: str = flag(
        text,
        default=STATIC_NAMESPACE,
        metavar="NAMESPACE",
        help="The namespace of the ProvisionerStatus objects; only its admins should have rights there.",
    )


def needed_configuration() -> str:
    """Declare --static-config for a process that does nothing without it."""
    return flag(
        text,
        default=DEFAULT_CONFIGURATION,
        metavar="DIR",
        check=is_absolute,
        help="The folder of the configuration, a ConfigMap of local-static-provisioner's keys.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticMasterFlags(StaticSource):
    static_lost_claim_delay: Duration = flag(
        Duration.parse,
        default="0s",
        metavar="DURATION",
        check=is_not_negative,
        help="How long after the deletion of a node the claims of its static volumes are deleted; 0s: never.",
    )
    static_config_sync_period: Duration = flag(
        Duration.parse,
        default="5s",
        aliases=("config-sync-period",),
        metavar="DURATION",
        check=is_some_time,
        help="How often the files of the configuration are read again.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticSettings(StaticSource):
    static_discovery_period: Duration = flag(
        Duration.parse,
        default="10s",
        aliases=("discovery-period",),
        metavar="DURATION",
        check=is_some_time,
        help="How often the disks are listed even without an event of the kernel.",
    )
    static_wipes: int = flag(
        integer, default="4", metavar="COUNT", check=at_least(1), help="How many released disks are wiped at a time."
    )
    static_wipe_rate: Quantity = flag(
        Quantity.parse,
        default="0",
        metavar="QUANTITY",
        check=is_size,
        help="The most bytes per second that are overwritten on all block devices together, such as 200Mi; "
        "0: no limit.",
    )

    def refuse_without_root(self) -> None:
        if self.static_config and os.geteuid() != 0:
            raise CannotGoOn("wiping disks needs root: run it as root, or set --static-config= to serve no disks")
