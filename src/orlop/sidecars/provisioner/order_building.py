"""Gather the facts for an order: class, data source, topology. `volume_order_rules` decides.

Objects come from the caches. One that is missing there is read from the API server: the watches are independent, so a
claim may arrive before the class or the node that was created earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.topology_rules import NoTopology, SelectedNode, TopologyDecision, immediate_topology, late_topology
from orlop.kube import objects
from orlop.kube.api_errors import Forbidden, NotFound
from orlop.kube.cache.informer import Informer
from orlop.kube.client import KubeClient
from orlop.kube.kinds import (
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
    VOLUME_ATTRIBUTES_CLASS,
    InvalidPath,
    Kind,
)
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.clone_rules import (
    CLONING_PROTECTION,
    Clone,
    SourceDecision,
    decide_source,
    source_claim_name,
)
from orlop.sidecars.provisioner.provisioner_settings import (
    HAS_TOPOLOGY,
    ApiObject,
    ProvisionerCaches,
    ProvisionerSettings,
)
from orlop.sidecars.provisioner.volume_order_rules import OrderDecision, OrderFacts, PlaceOrder, decide_order


class OrderBuilder:
    def __init__(
        self,
        caches: ProvisionerCaches,
        settings: ProvisionerSettings,
        *,
        kube: KubeClient,
        may_act: Callable[[], None],
    ) -> None:
        self._caches = caches
        self._settings = settings
        self._kube = kube
        self._may_act = may_act

    async def decide(self, claim: ApiObject, capabilities: frozenset[str], volume_name: str = "") -> OrderDecision:
        """Decide on a new order, or on another request for the open order of this volume name.

        Before an order for a clone is returned, the source claim gets its finalizer: once the driver copies, the source
        must not be deleted.
        """
        storage_class = await self._find(STORAGE_CLASS, state.class_name(claim), self._caches.classes)
        source = await self._source(claim, capabilities)
        facts = OrderFacts(
            storage_class,
            await self._attributes_class(claim),
            source,
            await self._topology(claim, storage_class, capabilities),
            capabilities,
            volume_name,
        )
        decision = decide_order(claim, facts, self._settings)
        if isinstance(decision, PlaceOrder) and isinstance(source, Clone):
            await self._protect_source(claim)
        return decision

    async def _attributes_class(self, claim: ApiObject) -> ApiObject | None:
        return await self._find(VOLUME_ATTRIBUTES_CLASS, state.attributes_class_name(claim), None)

    async def _find(self, kind: Kind, name: str, cache: Informer | None) -> ApiObject | None:
        if not name:
            return None
        key = ObjectName(None, name)
        if cache is not None and (cached := cache.get(key)) is not None:
            return cached
        # Forbidden: upstream's role does not allow every kind, so the object counts as missing. InvalidPath: the claim
        # has a name that no object can have.
        with suppress(NotFound, Forbidden, InvalidPath):
            return await self._kube.get(kind, key)
        return None

    # ---- topology ------------------------------------------------------------------------------------------------

    async def _topology(
        self, claim: ApiObject, storage_class: ApiObject | None, capabilities: frozenset[str]
    ) -> TopologyDecision:
        nodes, csi_nodes = self._caches.nodes, self._caches.csi_nodes
        if HAS_TOPOLOGY not in capabilities or nodes is None or csi_nodes is None or storage_class is None:
            return NoTopology("the driver has no topology")
        allowed = class_rules.allowed_topologies(storage_class)
        driver, mode = self._settings.driver, self._settings.topology
        if class_rules.is_late_binding(storage_class):
            name = state.selected_node(claim)
            selected = SelectedNode(
                name, await self._find(NODE, name, nodes), await self._find(CSI_NODE, name, csi_nodes)
            )
            return late_topology(driver, selected, allowed, nodes.cache, mode)
        return immediate_topology(driver, objects.name(claim), allowed, nodes.cache, csi_nodes.cache, mode)

    # ---- clones --------------------------------------------------------------------------------------------------

    async def _source(self, claim: ApiObject, capabilities: frozenset[str]) -> SourceDecision:
        source = self._source_claim(claim)
        volume = None
        if source is not None and (name := state.volume_name(source)):
            volume = self._caches.volumes.get(ObjectName(None, name))
        return decide_source(claim, source, volume, self._settings.driver, capabilities)

    def _source_claim(self, claim: ApiObject) -> ApiObject | None:
        name = source_claim_name(claim)
        return self._caches.claims.get(ObjectName(objects.namespace(claim), name)) if name else None

    async def _protect_source(self, claim: ApiObject) -> None:
        source = self._source_claim(claim)
        if source is None or objects.has_finalizer(source, CLONING_PROTECTION):
            return
        await self.write_finalizers(source, (*objects.finalizers(source), CLONING_PROTECTION))

    async def write_finalizers(self, claim: ApiObject, finalizers: tuple[str, ...]) -> ApiObject:
        """Write a claim's finalizers, by PUT: upstream's role may not patch claims."""
        self._may_act()
        metadata = {**objects.metadata(claim), "finalizers": list(finalizers)}
        return await self._kube.replace(PERSISTENT_VOLUME_CLAIM, {**claim, "metadata": metadata})
