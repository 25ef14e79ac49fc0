"""`orlop provisioner`: create the volumes of claims, and delete those of released ones, for any CSI driver.

Its flags are upstream's. The process itself is `processes/sidecar`; this module has the provisioner's own flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

from orlop.binding.topology_rules import TopologyMode
from orlop.csi.driver_session import Capabilities
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import boolean, flag, integer, text
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.kinds import (
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from orlop.kube.label_syntax import DNS_SUBDOMAIN
from orlop.kube.lease_rules import lock_name
from orlop.kube.objects import Object
from orlop.processes.daemon import CannotGoOn, is_some_time
from orlop.processes.sidecar import NO_EFFECT, Caches, Sidecar, SidecarFlags, SidecarSession, run_sidecar
from orlop.sidecars.provisioner.journal_leases import JournalLost
from orlop.sidecars.provisioner.provisioner_settings import (
    CREATES,
    HAS_TOPOLOGY,
    PUBLISHES,
    ProvisionerCaches,
    ProvisionerSettings,
)
from orlop.sidecars.provisioner.provisioning_controller import ProvisioningController, provisioning_controller

LONGEST_UUID: Final = 32
LONGEST_PREFIX: Final = 253 - len("-") - len("00000000-0000-0000-0000-000000000000")
NOT_HERE: Final = "Not supported: an error if set."


def fault_of_length(length: int) -> str | None:
    return None if length == -1 or 1 <= length <= LONGEST_UUID else f"must be -1 or between 1 and {LONGEST_UUID}"


def fault_of_prefix(prefix: str) -> str | None:
    if not prefix:
        return "Volume name prefix cannot be empty"
    # Otherwise every volume would be created, and deleted again because the API server refuses its PersistentVolume.
    if len(prefix) <= LONGEST_PREFIX and re.fullmatch(DNS_SUBDOMAIN, f"{prefix}-0"):
        return None
    return f"must begin a valid object name: a-z, 0-9, '-' and '.', at most {LONGEST_PREFIX} characters"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerFlags(SidecarFlags):
    timeout: Duration = flag(
        Duration.parse,
        default="10s",
        metavar="DURATION",
        check=is_some_time,
        help="Timeout of one call to the driver.",
    )
    volume_name_prefix: str = flag(
        text, default="pvc", metavar="PREFIX", check=fault_of_prefix, help="First part of the names of new volumes."
    )
    volume_name_uuid_length: int = flag(
        integer,
        default="-1",
        metavar="COUNT",
        check=fault_of_length,
        help="Characters of the claim's uid in the names of new volumes, without dashes; -1: all, with dashes.",
    )
    default_fstype: str = flag(
        text,
        default="",
        metavar="TYPE",
        help="File system of volumes whose class names none; if not set, the driver chooses.",
    )
    extra_create_metadata: bool = flag(
        boolean, default="false", help="Send the names of claim and PersistentVolume to the driver as parameters."
    )
    controller_publish_readonly: bool = flag(
        boolean, default="false", help="Mark the volumes of claims that are ReadOnlyMany alone as read-only."
    )
    strict_topology: bool = flag(
        boolean, default="false", help="Late binding: request only the topology of the selected node."
    )
    immediate_topology: bool = flag(
        boolean,
        default="true",
        help="Immediate binding: request the topologies of all nodes if the class has no allowedTopologies.",
    )
    prevent_volume_mode_conversion: bool = flag(boolean, default="true", help=NO_EFFECT)
    cloning_protection_threads: int = flag(integer, default="1", metavar="COUNT", help=NO_EFFECT)
    snapshot_orphan_sweep_interval: str = flag(text, default="5m", metavar="DURATION", help=NO_EFFECT)
    enable_pprof: bool = flag(boolean, default="false", help=NO_EFFECT)
    master: str = flag(text, default="", metavar="URL", help=NO_EFFECT)
    enable_capacity: bool = flag(boolean, default="false", help=NOT_HERE)
    capacity_threads: int = flag(integer, default="1", metavar="COUNT", help=NO_EFFECT)
    capacity_poll_interval: str = flag(text, default="1m", metavar="DURATION", help=NO_EFFECT)
    capacity_for_immediate_binding: bool = flag(boolean, default="false", help=NO_EFFECT)
    capacity_ownerref_level: int = flag(integer, default="1", metavar="COUNT", help=NO_EFFECT)
    kube_api_capacity_qps: str = flag(text, default="1", metavar="COUNT", help=NO_EFFECT)
    kube_api_capacity_burst: int = flag(integer, default="5", metavar="COUNT", help=NO_EFFECT)
    node_deployment: bool = flag(boolean, default="false", help=NOT_HERE)
    node_deployment_immediate_binding: bool = flag(boolean, default="true", help=NO_EFFECT)
    node_deployment_base_delay: str = flag(text, default="20s", metavar="DURATION", help=NO_EFFECT)
    node_deployment_max_delay: str = flag(text, default="60s", metavar="DURATION", help=NO_EFFECT)

    def cross_check(self) -> Iterator[str]:
        yield from SidecarFlags.cross_check(self)
        if self.enable_capacity:
            yield (
                "--enable-capacity is not supported yet. Remove it, and set storageCapacity: false in the CSIDriver: "
                "with true and no capacity objects, no pod with late-binding claims is scheduled."
            )
        if self.node_deployment:
            yield "--node-deployment is not supported: run one provisioner for the cluster, with --leader-election."


def only_labels(node: Object) -> Object:
    """Return the part of a Node that topology needs. Its status is large, and changes every few minutes."""
    metadata = node["metadata"]
    needed = {key: metadata[key] for key in ("name", "uid", "resourceVersion", "labels") if key in metadata}
    return {"metadata": needed}


def kinds_needed(capabilities: Capabilities) -> tuple[Kind, ...]:
    """Return the kinds to watch only for some drivers: nodes for topology, attachments to delay a deletion."""
    topology = (NODE, CSI_NODE) if HAS_TOPOLOGY in capabilities else ()
    return (*topology, VOLUME_ATTACHMENT) if PUBLISHES in capabilities else topology


async def run(session: SidecarSession[ProvisionerFlags], caches: Caches) -> None:
    await run_provisioner(session, caches, provisioner_settings(session))


async def run_provisioner(session: SidecarSession[Any], caches: Caches, settings: ProvisionerSettings) -> None:
    """Provision until the process is stopped; `session` may be that of a process that does more beside it."""
    async with AsyncExitStack() as stack:
        kinds = kinds_needed(session.driver.capabilities)
        more = {kind: await stack.enter_async_context(session.informers.using(_watched(kind))) for kind in kinds}
        try:
            await _run_workers(session, {**caches, **more}, settings)
        except JournalLost as error:
            raise CannotGoOn(str(error)) from None


def _watched(kind: Kind) -> Watched:
    return Watched(kind, transform=only_labels) if kind == NODE else Watched(kind)


async def _run_workers(
    session: SidecarSession[Any], caches: dict[Kind, Informer], settings: ProvisionerSettings
) -> None:
    provisioner_caches = ProvisionerCaches(
        claims=caches[PERSISTENT_VOLUME_CLAIM],
        volumes=caches[PERSISTENT_VOLUME],
        classes=caches[STORAGE_CLASS],
        attachments=caches.get(VOLUME_ATTACHMENT),
        nodes=caches.get(NODE),
        csi_nodes=caches.get(CSI_NODE),
    )
    if CREATES not in session.driver.capabilities:
        session.runtime.log.warning("driver cannot create volumes; every claim is refused", missing=CREATES)

    def worker_for(capabilities: Capabilities) -> ProvisioningController:
        # Without nodes, volumes of a driver that now has topology would be created anywhere; without attachments, they
        # would be deleted while attached. A restarted process watches these kinds.
        if missing := [kind.kind for kind in kinds_needed(capabilities) if kind not in caches]:
            raise CannotGoOn(
                f"the driver's capabilities changed, and now need a watch of {', '.join(missing)}: restart this process"
            )
        return provisioning_controller(
            provisioner_caches,
            settings,
            runtime=session.runtime,
            kube=session.kube,
            csi=session.driver.csi,
            events=session.events,
            queue_metrics=session.queue_metrics,
            namespace=session.lease_namespace,
            capabilities=capabilities,
            may_act=session.may_act,
        )

    await session.run_workers(worker_for)


def provisioner_settings(session: SidecarSession[ProvisionerFlags]) -> ProvisionerSettings:
    flags = session.settings
    return ProvisionerSettings(
        driver=session.driver.driver,
        identity=provisioner_identity(session),
        volume_name_prefix=flags.volume_name_prefix,
        volume_name_uuid_length=flags.volume_name_uuid_length,
        default_fs_type=flags.default_fstype,
        claim_metadata=flags.extra_create_metadata,
        publish_read_only=flags.controller_publish_readonly,
        topology=TopologyMode(strict=flags.strict_topology, immediate=flags.immediate_topology),
        timeout=flags.timeout.seconds,
        workers=flags.worker_threads,
        retry_start=flags.retry_interval_start.seconds,
        retry_most=flags.retry_interval_max.seconds,
    )


def provisioner_identity(session: SidecarSession[Any]) -> str:
    """Return a name of this process, as upstream's: it is written into each PersistentVolume."""
    runtime = session.runtime
    milliseconds = int(runtime.clock.now().timestamp() * 1000)
    return f"{milliseconds}-{runtime.random.randrange(10_000)}-{session.driver.driver}"


SIDECAR: Final = Sidecar(
    name="provisioner",
    summary="Creates the volumes of claims, and deletes those of released PersistentVolumes, for a CSI driver.",
    flags=ProvisionerFlags,
    event_source="external-provisioner",
    lease_of=lock_name,
    kinds=(PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME, STORAGE_CLASS),
    run=run,
)
DAEMON: Final = SIDECAR.daemon


def main(arguments: Sequence[str]) -> int:
    return run_sidecar(SIDECAR, arguments)
