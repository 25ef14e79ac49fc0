"""What the master knows: PersistentVolumes, ProvisionerStatuses, Nodes and StorageClasses, with its own last writes.

The caches keep the facts of an object in place of the object: with ten thousand volumes, objects would need ten times
the memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from sys import intern
from typing import Any, Final, cast

from orlop.kube import objects
from orlop.kube.cache.informer import Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.cache.object_cache import CachedObject
from orlop.kube.client import Selection
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, STORAGE_CLASS, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.configuration import StaticConfiguration
from orlop.static_pv.latest_objects import LatestObjects
from orlop.static_pv.node_disks_rules import (
    DiskReport,
    NodeDisks,
    VersionedVolume,
    is_file_system,
    is_unique_across_nodes,
    lists_disk,
    read_node_report,
)
from orlop.static_pv.static_volume_rules import StaticVolume, read_static_volume

BY_NODE: Final = "static volumes by node"
BY_IDENTITY: Final = "static volumes by disk"
FACTS: Final = "facts"
SHARED_TEXTS: Final = ("storageClass", "entry", "capacity", "volumeMode", "fileSystem")
KINDS: Final = (PERSISTENT_VOLUME, PROVISIONER_STATUS, NODE, STORAGE_CLASS)


def slim_persistent_volume(obj: Object) -> Object:
    return _slim(obj) | {FACTS: read_static_volume(obj)}


def slim_report(obj: Object) -> Object:
    try:
        _share_texts(obj)
        facts = read_node_report(obj)
    except (ValueError, AttributeError):
        # Written by a newer version, or by hand. Without a report nothing is decided about the node.
        facts = None
    return _slim(obj) | {FACTS: facts}


def _share_texts(report: Object) -> None:
    """Keep texts that the disks of all nodes have in common once."""
    status = report.get("status")
    for volume in (status.get("localVolumes") or ()) if isinstance(status, Mapping) else ():
        for name in SHARED_TEXTS:
            if isinstance(text := volume.get(name), str):
                volume[name] = intern(text)


def slim_node(obj: Object) -> Object:
    slim = _slim(obj)
    slim["metadata"]["labels"] = dict(objects.labels(obj))
    return slim


def slim_class(obj: Object) -> Object:
    fields = ("reclaimPolicy", "mountOptions")
    return _slim(obj) | {name: obj[name] for name in fields if name in obj}


def _slim(obj: Object) -> Object:
    kept = ("name", "namespace", "uid", "resourceVersion")
    return {"metadata": {name: obj["metadata"][name] for name in kept if name in obj["metadata"]}}


TRANSFORMS: Final = {
    PERSISTENT_VOLUME: slim_persistent_volume,
    PROVISIONER_STATUS: slim_report,
    NODE: slim_node,
    STORAGE_CLASS: slim_class,
}


def volume_facts(obj: CachedObject | None) -> StaticVolume | None:
    return cast("StaticVolume | None", obj[FACTS]) if obj is not None else None


def report_facts(obj: CachedObject | None) -> DiskReport | None:
    return cast("DiskReport | None", obj[FACTS]) if obj is not None else None


def _nodes_of_volume(obj: CachedObject) -> Iterable[str]:
    facts = volume_facts(obj)
    return (facts.node,) if facts is not None else ()


def _disk_of_volume(obj: CachedObject) -> Iterable[str]:
    facts = volume_facts(obj)
    return (facts.identity,) if facts is not None and facts.identity else ()


def _report_fingerprint(obj: CachedObject) -> Any:
    facts = report_facts(obj)
    return facts.decisive if facts is not None else None


def _content(obj: CachedObject) -> str:
    """Return everything but what each write changes."""
    metadata = {key: value for key, value in objects.metadata(obj).items() if key != "resourceVersion"}
    return repr((metadata, {key: value for key, value in obj.items() if key != "metadata"}))


@dataclass(frozen=True, slots=True)
class MasterView:
    volumes: LatestObjects[StaticVolume | None]
    reports: LatestObjects[Any]
    nodes: LatestObjects[str]
    classes: LatestObjects[str]
    namespace: str
    """Where the ProvisionerStatuses are."""
    seen_bound: set[str] = field(default_factory=set)
    """Uids of volumes that were seen with a claim, until that is noted in the volume."""

    @property
    def all(self) -> Mapping[Kind, LatestObjects[Any]]:
        return dict(zip(KINDS, (self.volumes, self.reports, self.nodes, self.classes), strict=True))

    async def wait_synced(self) -> None:
        for each in self.all.values():
            await each.informer.wait_synced()

    def report_name(self, node: str) -> ObjectName:
        return ObjectName(self.namespace, node)

    def report_of(self, node: str) -> DiskReport | None:
        return report_facts(self.reports.get(self.report_name(node)))

    def volumes_of(self, node: str) -> dict[str, VersionedVolume]:
        found = {}
        for obj in self.volumes.candidates(BY_NODE, node):
            facts = volume_facts(obj)
            if facts is not None and facts.node == node:
                if facts.uid in self.seen_bound:
                    # An admin may have removed the claim before the note could be written.
                    facts = replace(facts, was_seen_bound=True)
                found[facts.name] = VersionedVolume(facts, objects.resource_version(obj))
        return found

    def note_claim(self, ended: StaticVolume | None, current: StaticVolume | None) -> None:
        """Remember that a claim has a volume until that is noted in the volume, or the volume is gone."""
        if ended is not None:
            self.seen_bound.discard(ended.uid)
        if current is None or current.is_ever_bound_noted:
            self.seen_bound.discard(current.uid if current is not None else "")
        elif current.was_ever_bound:
            self.seen_bound.add(current.uid)

    def is_known(self, node: str) -> bool:
        """Return whether there is anything of this node that the master may have to act on."""
        return self.reports.get(self.report_name(node)) is not None or bool(self.volumes_of(node))

    def known_nodes(self) -> set[str]:
        names = {name.name for name in self.reports.informer.cache.names()}
        facts = (volume_facts(obj) for obj in self.volumes.informer.cache)
        return names | {each.node for each in facts if each is not None}

    def disks_of(self, node: str, configuration: StaticConfiguration, *, is_gone: bool) -> NodeDisks:
        report, volumes = self.report_of(node), self.volumes_of(node)
        listed = report.volumes or () if report is not None else ()
        absent = [each for each in listed if each.name not in volumes]
        named = ((each.name, self.classes.get(ObjectName(None, each.name))) for each in configuration.classes)
        return NodeDisks(
            name=node,
            node=self.nodes.get(ObjectName(None, node)),
            is_gone=is_gone,
            report=report,
            volumes=volumes,
            configuration=configuration,
            classes={name: obj for name, obj in named if obj is not None},
            taken_names=frozenset(
                each.name for each in absent if self.volumes.get(ObjectName(None, each.name)) is not None
            ),
            moved_here=self._moved_to(node, {each.identity for each in absent}),
        )

    def _moved_to(self, node: str, identities: Iterable[str]) -> dict[str, str]:
        """Return, by identity, the used volumes of other nodes whose disk is listed on this node now."""
        names = {}
        for identity in filter(is_unique_across_nodes, identities):
            for obj in self.volumes.candidates(BY_IDENTITY, identity):
                facts = volume_facts(obj)
                # Candidates include all that we wrote a moment ago, which the index does not have yet: check each.
                if facts is None or facts.identity != identity or facts.node == node or facts.is_untouched:
                    continue
                report = self.report_of(facts.node)
                # The report of a node that is down still lists a disk that was moved. Only a file system can really be
                # on two nodes, as a clone: believe the report of the other node only there.
                if not is_file_system(identity) or report is None or not lists_disk(report, facts):
                    names[identity] = facts.name
        return names


@asynccontextmanager
async def master_view(informers: Informers, namespace: str) -> AsyncIterator[MasterView]:
    """Yield the view. Its informers are not shared: other parts of a process need whole objects."""
    async with AsyncExitStack() as stack:
        used = {}
        for kind in KINDS:
            selection = Selection(namespace=namespace if kind.namespaced else None)
            watched = Watched(kind, selection, TRANSFORMS[kind])
            used[kind] = await stack.enter_async_context(informers.using(watched))
        used[PERSISTENT_VOLUME].add_index(BY_NODE, _nodes_of_volume)
        used[PERSISTENT_VOLUME].add_index(BY_IDENTITY, _disk_of_volume)
        yield MasterView(
            volumes=LatestObjects(used[PERSISTENT_VOLUME], volume_facts),
            reports=LatestObjects(used[PROVISIONER_STATUS], _report_fingerprint),
            nodes=LatestObjects(used[NODE], _content),
            classes=LatestObjects(used[STORAGE_CLASS], _content),
            namespace=namespace,
        )
