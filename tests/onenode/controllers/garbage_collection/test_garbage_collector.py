"""Objects go with their owners, in the background or before them, or stay without them, as the deletion asks."""

from __future__ import annotations

import pytest

from orlop.kube.client import DeleteOptions, MergePatch
from orlop.kube.kinds import (
    CONFIG_MAP,
    CUSTOM_RESOURCE_DEFINITION,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    REPLICA_SET,
    SECRET,
)
from orlop.kube.objects import ObjectName, is_being_deleted, owner_references, uid
from support.api.api_objects import claim, config_map, finalized, pod, secret, workload
from support.api.custom_resources import definition, disk, disk_kind
from support.workloads.workload_worlds import WorkloadWorld, owned_by

pytestmark = pytest.mark.virtual_time


# ---- background ------------------------------------------------------------------------------------------------------


async def test_what_an_object_owns_goes_after_it_down_to_the_last():
    async with WorkloadWorld() as w, w.collector():
        top = await w.create(CONFIG_MAP, config_map("top"))
        middle = await w.create(SECRET, owned_by(top, CONFIG_MAP, secret("middle")))
        await w.create(PERSISTENT_VOLUME_CLAIM, owned_by(middle, SECRET, claim("bottom")))
        await w.create(CONFIG_MAP, config_map("other"))
        await w.settle()
        before = await w.names(SECRET)
        await w.remove(CONFIG_MAP, "top")
        await w.settle()
        bottom = await w.find(PERSISTENT_VOLUME_CLAIM, "bottom")

        assert before == ["middle"]
        assert await w.names(SECRET) == []
        assert bottom is None or is_being_deleted(bottom)
        assert await w.names(CONFIG_MAP) == ["other"]


async def test_an_object_whose_owner_never_existed_goes():
    async with WorkloadWorld() as w, w.collector():
        never = {"metadata": {"name": "never", "uid": "no-such-uid"}}
        await w.create(SECRET, owned_by(never, CONFIG_MAP, secret("s")))
        await w.settle()

        assert await w.names(SECRET) == []


async def test_an_owner_of_the_same_name_with_another_uid_is_not_the_owner():
    async with WorkloadWorld() as w, w.collector():
        await w.create(CONFIG_MAP, config_map("c"))
        another = {"metadata": {"name": "c", "uid": "another"}}
        await w.create(SECRET, owned_by(another, CONFIG_MAP, secret("s")))
        await w.settle()

        assert await w.names(SECRET) == []
        assert await w.names(CONFIG_MAP) == ["c"]


async def test_an_object_lives_while_one_of_its_owners_does_and_loses_the_references_to_the_others():
    async with WorkloadWorld() as w, w.collector():
        first, second = [await w.create(CONFIG_MAP, config_map(name)) for name in ("first", "second")]
        await w.create(SECRET, owned_by(first, CONFIG_MAP, owned_by(second, CONFIG_MAP, secret("s"))))
        await w.remove(CONFIG_MAP, "first")
        await w.settle()
        found = await w.find(SECRET, "s")

        assert found is not None
        assert [owner["name"] for owner in owner_references(found)] == ["second"]


async def test_what_was_orphaned_while_nobody_collected_goes_when_somebody_does():
    async with WorkloadWorld() as w:
        owner = await w.create(CONFIG_MAP, config_map("c"))
        await w.create(SECRET, owned_by(owner, CONFIG_MAP, secret("s")))
        await w.remove(CONFIG_MAP, "c")
        async with w.collector():
            await w.settle()

        assert await w.names(SECRET) == []


async def test_an_owner_of_a_kind_that_nobody_serves_is_never_taken_for_gone():
    async with WorkloadWorld() as w, w.collector():
        owner = {"metadata": {"name": "d", "uid": "u"}}
        await w.create(SECRET, owned_by(owner, disk_kind("nowhere.example.com"), secret("s")))
        await w.settle(3600)

        assert await w.names(SECRET) == ["s"]


# ---- foreground ------------------------------------------------------------------------------------------------------


async def test_a_foreground_deletion_waits_for_what_blocks_it_and_ends_after_it():
    async with WorkloadWorld() as w, w.collector():
        owner = await w.create(REPLICA_SET, workload())
        held = finalized(pod("held"), "example.com/held")
        await w.create(POD, owned_by(owner, REPLICA_SET, held, blocks=True))
        await w.create(SECRET, owned_by(owner, REPLICA_SET, finalized(secret("not-waited-for"), "example.com/held")))
        await w.remove(REPLICA_SET, "w", "Foreground")
        await w.settle()
        waiting = await w.find(REPLICA_SET, "w")
        its_pod = await w.find(POD, "held")
        await w.merge(POD, "held", {"metadata": {"finalizers": None}})
        await w.settle()

        assert waiting is not None
        assert is_being_deleted(waiting)
        assert its_pod is not None
        assert is_being_deleted(its_pod)
        assert await w.names(REPLICA_SET) == []
        assert await w.names(POD) == []
        assert await w.names(SECRET) == ["not-waited-for"]


async def test_a_chain_is_deleted_in_the_foreground_from_its_end():
    async with WorkloadWorld() as w, w.collector():
        top = await w.create(CONFIG_MAP, config_map("top"))
        middle = await w.create(CONFIG_MAP, owned_by(top, CONFIG_MAP, config_map("middle"), blocks=True))
        bottom = finalized(config_map("bottom"), "example.com/held")
        await w.create(CONFIG_MAP, owned_by(middle, CONFIG_MAP, bottom, blocks=True))
        await w.remove(CONFIG_MAP, "top", "Foreground")
        await w.settle()
        waiting = await w.names(CONFIG_MAP)
        await w.merge(CONFIG_MAP, "bottom", {"metadata": {"finalizers": None}})
        await w.settle()

        assert waiting == ["bottom", "middle", "top"]
        assert await w.names(CONFIG_MAP) == []


async def test_objects_that_own_each_other_are_deleted_in_the_foreground():
    async with WorkloadWorld() as w, w.collector():
        first = await w.create(CONFIG_MAP, config_map("first"))
        second = await w.create(CONFIG_MAP, owned_by(first, CONFIG_MAP, config_map("second"), blocks=True))
        circle = owned_by(second, CONFIG_MAP, {"metadata": {}}, blocks=True)
        await w.merge(CONFIG_MAP, "first", circle)
        await w.settle()
        await w.remove(CONFIG_MAP, "first", "Foreground")
        await w.settle()

        assert await w.names(CONFIG_MAP) == []


async def test_a_namespace_ends_although_something_in_it_was_deleted_in_the_foreground_or_orphaned():
    async with WorkloadWorld() as w, w.collector():
        await w.create(NAMESPACE, {"metadata": {"name": "n"}})
        for propagation in ("Foreground", "Orphan"):
            name = propagation.lower()
            owner = await w.create(CONFIG_MAP, {"metadata": {"name": name, "namespace": "n"}})
            below = finalized({"metadata": {"name": name, "namespace": "n"}}, "example.com/held")
            await w.create(SECRET, owned_by(owner, CONFIG_MAP, below, blocks=True))
            await w.client.delete(CONFIG_MAP, ObjectName("n", name), DeleteOptions(propagation=propagation))
        await w.remove(NAMESPACE, "n")
        for name in ("foreground", "orphan"):
            await w.client.patch(SECRET, ObjectName("n", name), MergePatch({"metadata": {"finalizers": None}}))
        await w.settle(60)

        assert await w.find(NAMESPACE, "n") is None


# ---- orphan ----------------------------------------------------------------------------------------------------------


async def test_an_orphan_deletion_leaves_what_the_object_owned_without_the_reference():
    async with WorkloadWorld() as w, w.collector():
        owner = await w.create(REPLICA_SET, workload())
        other = await w.create(CONFIG_MAP, config_map("other"))
        await w.create(POD, owned_by(other, CONFIG_MAP, owned_by(owner, REPLICA_SET, pod(), blocks=True)))
        await w.create(SECRET, owned_by(owner, REPLICA_SET, secret("s")))
        await w.remove(REPLICA_SET, "w", "Orphan")
        await w.settle(60)
        left, alone = await w.find(POD, "p"), await w.find(SECRET, "s")

        assert await w.names(REPLICA_SET) == []
        assert left is not None
        assert [each["name"] for each in owner_references(left)] == ["other"]
        assert alone is not None
        assert owner_references(alone) == ()


# ---- custom resources ------------------------------------------------------------------------------------------------


async def test_custom_resources_own_and_are_owned_as_soon_as_their_kind_is_served():
    kind = disk_kind("x.example.com")
    async with WorkloadWorld() as w, w.collector():
        await w.create(CUSTOM_RESOURCE_DEFINITION, definition("x.example.com"))
        owner = await w.create(kind, disk("owner"))
        below = await w.create(kind, owned_by(owner, kind, disk("below"), blocks=True))
        await w.create(SECRET, owned_by(below, kind, secret("s")))
        await w.settle()
        before = await w.names(SECRET)
        await w.remove(kind, "owner", "Foreground")
        await w.settle()

        assert before == ["s"]
        assert await w.names(kind) == []
        assert await w.names(SECRET) == []


async def test_what_a_custom_resource_owned_goes_when_its_definition_is_deleted():
    kind = disk_kind("x.example.com")
    async with WorkloadWorld() as w, w.collector():
        await w.create(CUSTOM_RESOURCE_DEFINITION, definition("x.example.com"))
        owner = await w.create(kind, disk("owner"))
        await w.create(SECRET, owned_by(owner, kind, secret("s")))
        await w.settle()
        await w.remove(CUSTOM_RESOURCE_DEFINITION, "disks.x.example.com")
        await w.settle(60)

        assert await w.names(SECRET) == []


# ---- owners elsewhere ------------------------------------------------------------------------------------------------


async def test_an_owner_in_another_namespace_is_refused_with_an_event_and_counts_as_none():
    async with WorkloadWorld() as w, w.collector():
        await w.create(NAMESPACE, {"metadata": {"name": "other"}})
        owner = await w.create(CONFIG_MAP, {"metadata": {"name": "c", "namespace": "other"}})
        await w.settle()
        await w.create(SECRET, owned_by(owner, CONFIG_MAP, secret("s")))
        await w.settle()

        assert await w.names(SECRET) == []
        named = f"ownerRef [v1/ConfigMap, namespace: default, name: c, uid: {uid(owner)}]"
        assert await w.events("s") == [
            f'Warning OwnerRefInvalidNamespace: {named} does not exist in namespace "default"'
        ]


async def test_a_cluster_scoped_object_with_a_namespaced_owner_is_never_deleted():
    async with WorkloadWorld() as w, w.collector():
        owner = await w.create(CONFIG_MAP, config_map("c"))
        await w.settle()
        await w.create(NODE, owned_by(owner, CONFIG_MAP, {"metadata": {"name": "n1"}}))
        await w.settle()
        (event,) = await w.events("n1")
        await w.remove(CONFIG_MAP, "c")
        await w.settle(60)

        assert event.startswith("Warning OwnerRefInvalidNamespace: ownerRef [v1/ConfigMap, namespace: , name: c, uid: ")
        assert event.endswith('does not exist in namespace ""')
        assert await w.find(NODE, "n1") is not None


async def test_a_cluster_scoped_owner_has_dependents_in_any_namespace():
    async with WorkloadWorld() as w, w.collector():
        owner = await w.create(NODE, {"metadata": {"name": "n1"}})
        await w.create(SECRET, owned_by(owner, NODE, secret("s")))
        await w.settle()
        before = await w.names(SECRET)
        await w.remove(NODE, "n1", "Foreground")
        await w.settle()

        assert before == ["s"]
        assert await w.names(SECRET) == []
        assert await w.find(NODE, "n1") is None


async def test_nothing_is_deleted_for_a_cache_that_is_behind():
    """A reference that was removed a moment ago, and an owner that came a moment ago."""
    async with WorkloadWorld() as w:
        gone = {"metadata": {"name": "gone", "uid": "gone"}}
        await w.create(SECRET, owned_by(gone, CONFIG_MAP, secret("s")))
        async with w.collector():
            found = await w.client.get(SECRET, ObjectName("default", "s"))
            await w.client.patch(
                SECRET,
                ObjectName("default", "s"),
                MergePatch({"metadata": {"ownerReferences": None, "uid": uid(found)}}),
            )
            await w.settle(60)

        assert await w.names(SECRET) == ["s"]
