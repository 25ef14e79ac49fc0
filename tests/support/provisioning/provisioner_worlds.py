"""A cluster on virtual time for provisioners: an API server, a scripted driver, a provisioner that dies and comes back.

No binder runs here: tests mark claims for the driver and set the phases of volumes themselves, as the binder would.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from onenode.apiserver.access.rbac_rules import ADMIN, User
from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.csi.in_process_transport import InProcessConnection
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import collecting_log
from orlop.kube.api_errors import NotFound
from orlop.kube.cache.informer import Watched, without_managed_fields
from orlop.kube.cache.informers import Informers
from orlop.kube.client import MergePatch
from orlop.kube.kinds import (
    CSI_NODE,
    EVENT,
    LEASE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    VOLUME_ATTRIBUTES_CLASS,
    Kind,
)
from orlop.kube.kinds import NAMESPACE as NAMESPACE_KIND
from orlop.kube.objects import ObjectName
from orlop.records.provision_journal import ANNOTATION, JournalEntry, decode_page
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerCaches, ProvisionerSettings
from orlop.sidecars.provisioner.provisioning_controller import ProvisioningController, provisioning_controller
from orlop.testing.driver_model import Storage
from orlop.testing.driver_script import read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor
from support.api.api_wires import Wire
from support.csi.indiscreet_drivers import IndiscreetDriver
from support.worlds import ClusterWorld, running

DRIVER = "mock.example.com"
NAMESPACE = "team"
JOURNAL_NAMESPACE = "default"
CREATE, DELETE = "CreateVolume", "DeleteVolume"
Object = dict[str, Any]


class ProvisionerWorld(ClusterWorld):
    def __init__(self, *, with_node: bool = True) -> None:
        """`with_node`: the driver is registered on one node. With topology, it is not called while it has no node."""
        super().__init__()
        self._with_node = with_node
        self.storage = Storage()
        self.drivers: list[ScriptedDriver] = []
        self.interceptors: list[ScriptedInterceptor] = []
        self.metrics: list[Metrics] = []
        """Those of the provisioners so far."""
        self.user: User = ADMIN
        self.wire = Wire()
        """The provisioner's connection to the API server; the tests have another."""

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        ends.push_async_callback(self._end_calls)
        await self.create(NAMESPACE_KIND, {"metadata": {"name": NAMESPACE}})
        if self._with_node:
            await self.make_node("n0", zone="z")
        self.play({})

    async def _end_calls(self) -> None:
        for driver, interceptor in zip(self.drivers, self.interceptors, strict=True):
            driver.stop_hanging()
            await interceptor.drain(10_000.0)

    def play(self, script: Mapping[str, Any], **rest: Any) -> None:
        """Start the driver anew, on the same storage, with this script."""
        driver = ScriptedDriver(read_script({"script": script, **rest}), self.clock, storage=self.storage)
        self.drivers.append(driver)
        self.interceptor = ScriptedInterceptor(
            driver, log=collecting_log(self.log), metrics=Metrics("t"), clock=self.clock
        )
        self.interceptors.append(self.interceptor)

    # ---- the provisioner -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def provisioner(self, **settings: Any) -> AsyncIterator[ProvisioningController]:
        """Run a provisioner; it is killed when the block is left."""
        wire = self.wire.around(self.on.transport(self.user))
        connection = InProcessConnection(IndiscreetDriver(self.interceptor))
        async with self.controller_parts("p", wire) as the, AsyncExitStack() as ends:
            ends.push_async_callback(connection.close)
            runtime = the.runtime
            self.metrics.append(runtime.metrics)
            csi = CsiClient(
                connection, log=runtime.log, metrics=runtime.metrics, clock=runtime.clock, random=runtime.random
            )
            capabilities = await csi.controller_capabilities()
            async with used_caches(the.informers, capabilities) as caches:
                controller = provisioning_controller(
                    caches,
                    ProvisionerSettings(driver=DRIVER, identity="p-1", **settings),
                    runtime=runtime,
                    kube=the.kube,
                    csi=csi,
                    events=the.events,
                    queue_metrics=the.queue_metrics,
                    namespace=JOURNAL_NAMESPACE,
                    capabilities=capabilities,
                    may_act=lambda: None,
                )
                async with running(controller.run()):
                    yield controller
                    await the.events.drain(60.0)

    # ---- objects -------------------------------------------------------------------------------------------------

    async def make_class(self, name: str = "fast", **fields: Any) -> Object:
        body = {"metadata": {"name": name}, "provisioner": DRIVER, **fields}
        return await self.client.create(STORAGE_CLASS, body)

    async def make_claim(self, name: str = "data", **changes: Any) -> Object:
        """Create a claim that the binder has marked for the driver. `annotations` and fields of spec can be changed."""
        return await self.client.create(PERSISTENT_VOLUME_CLAIM, claim_object(name, **changes))

    async def make_attributes_class(self, name: str, driver: str = DRIVER, **parameters: str) -> None:
        body = {"metadata": {"name": name}, "driverName": driver, "parameters": parameters}
        await self.client.create(VOLUME_ATTRIBUTES_CLASS, body)

    async def make_node(self, name: str, **labels: str) -> None:
        """Create a node with these topology labels, on which the driver is registered; `__` in a key is a slash."""
        topology = {key.replace("__", "/"): value for key, value in labels.items()}
        await self.client.create(NODE, {"metadata": {"name": name, "labels": topology}})
        registered = {"name": DRIVER, "nodeID": name, "topologyKeys": sorted(topology)}
        await self.client.create(CSI_NODE, {"metadata": {"name": name}, "spec": {"drivers": [registered]}})

    async def make_secret(self, name: str, namespace: str = NAMESPACE, **data: str) -> None:
        body = {"metadata": {"name": name, "namespace": namespace}, "stringData": data}
        await self.client.create(SECRET, body)

    async def annotate_claim(self, name: str = "data", **annotations: str | None) -> None:
        """`selected_node` is the scheduler's key; None removes an annotation."""
        keys = {"selected_node": state.SELECTED_NODE}
        changed = {keys.get(key, key): value for key, value in annotations.items()}
        patch = MergePatch({"metadata": {"annotations": changed}})
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, name), patch)

    async def bind(self, claim: str, volume: str) -> None:
        """Bind a claim to a volume, as the binder does."""
        key = ObjectName(NAMESPACE, claim)
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, key, MergePatch({"spec": {"volumeName": volume}}))
        status = MergePatch({"status": {"phase": "Bound"}})
        await self.client.patch(PERSISTENT_VOLUME_CLAIM, key, status, subresource="status")
        await self.set_phase(volume, "Bound")

    async def delete_claim(self, name: str = "data") -> None:
        """Delete a claim as by force: its finalizer does not hold it."""
        key = ObjectName(NAMESPACE, name)
        await self.client.delete(PERSISTENT_VOLUME_CLAIM, key)
        if await self.get(PERSISTENT_VOLUME_CLAIM, name, NAMESPACE) is not None:
            await self.client.patch(PERSISTENT_VOLUME_CLAIM, key, MergePatch({"metadata": {"finalizers": None}}))

    async def release(self, volume: str) -> None:
        """Release a volume as the binder does; the protection controller does not hold it any more."""
        key = ObjectName(None, volume)
        kept = [
            one
            for one in (await self.client.get(PERSISTENT_VOLUME, key))["metadata"]["finalizers"]
            if one != state.PV_PROTECTION
        ]
        await self.client.patch(PERSISTENT_VOLUME, key, MergePatch({"metadata": {"finalizers": kept}}))
        await self.set_phase(volume, "Released")

    async def set_phase(self, volume: str, phase: str) -> None:
        patch = MergePatch({"status": {"phase": phase}})
        await self.client.patch(PERSISTENT_VOLUME, ObjectName(None, volume), patch, subresource="status")

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> Object | None:
        try:
            return await self.client.get(kind, ObjectName(namespace, name))
        except NotFound:
            return None

    async def claim(self, name: str = "data") -> Object:
        return await self.client.get(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, name))

    async def volumes(self) -> list[Object]:
        return (await self.client.list(PERSISTENT_VOLUME)).items

    async def event_objects(self) -> list[Object]:
        return (await self.client.list(EVENT)).items

    async def events(self) -> list[str]:
        return [f"{event['reason']}: {event['note']}" for event in await self.event_objects()]

    async def journal(self) -> list[JournalEntry]:
        leases = (await self.client.list(LEASE)).items
        pages = [lease["metadata"].get("annotations", {}).get(ANNOTATION, "") for lease in leases]
        return [entry for page in pages if page for entry in decode_page(page)]

    # ---- what the driver has -------------------------------------------------------------------------------------

    def names(self) -> list[str]:
        return sorted(volume.name for volume in self.storage.volumes)

    def calls(self, *methods: str) -> list[str]:
        listed = methods or (CREATE, DELETE)
        return [call.method for driver in self.drivers for call in driver.calls if call.method in listed]

    def requests(self, method: str) -> list[Any]:
        return [call.request for driver in self.drivers for call in driver.calls if call.method == method]

    async def until_event(self, reason: str, part: str = "") -> None:
        async def is_recorded() -> bool:
            return any(event.startswith(reason) and part in event for event in await self.events())

        await self.until(is_recorded)

    async def until_provisioned(self, count: int = 1) -> list[Object]:
        async def are_there() -> bool:
            return len(await self.volumes()) == count

        await self.until(are_there)
        return await self.volumes()

    async def until_journal_is_empty(self) -> None:
        async def is_empty() -> bool:
            return not await self.journal()

        await self.until(is_empty)


def claim_object(name: str = "data", **changes: Any) -> Object:
    marks = {state.STORAGE_PROVISIONER: DRIVER, **changes.pop("annotations", {})}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
        **changes,
    }
    return {"metadata": {"name": name, "namespace": NAMESPACE, "annotations": marks}, "spec": spec}


@asynccontextmanager
async def used_caches(informers: Informers, capabilities: frozenset[str]) -> AsyncIterator[ProvisionerCaches]:
    has_topology = "VOLUME_ACCESSIBILITY_CONSTRAINTS" in capabilities
    kinds = {
        "claims": PERSISTENT_VOLUME_CLAIM,
        "volumes": PERSISTENT_VOLUME,
        "classes": STORAGE_CLASS,
        **({"attachments": VOLUME_ATTACHMENT} if "PUBLISH_UNPUBLISH_VOLUME" in capabilities else {}),
        **({"nodes": NODE, "csi_nodes": CSI_NODE} if has_topology else {}),
    }
    async with AsyncExitStack() as stack:
        caches = {
            name: await stack.enter_async_context(informers.using(Watched(kind, transform=without_managed_fields)))
            for name, kind in kinds.items()
        }
        yield ProvisionerCaches(**caches)
