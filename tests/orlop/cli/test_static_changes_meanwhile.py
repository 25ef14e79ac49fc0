"""What `orlop static` does when the cluster changes between its decision and its writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import NAMESPACE, NODE, PERSISTENT_VOLUME, Kind
from orlop.kube.objects import ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import RELEASE, WIPE_FINALIZER, new_volume
from support.drives.typed_commands import Bench, bench
from support.static_volumes.static_objects import (
    CLASS,
    CONFIGURATION,
    SPACE,
    class_object,
    local_volume,
    node_object,
    report_object,
)

CLAIM = {"namespace": "team", "name": "data", "uid": "c1"}
Change = Callable[[KubeClient], Awaitable[Any]]


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as made:
        made.create(NAMESPACE, {"metadata": {"name": SPACE}})
        made.create(NODE, node_object("n1"))
        made.create(PROVISIONER_STATUS, report_object("n1"))
        yield made


def used_volume(here: Bench, entry: str, phase: str) -> str:
    node = here.get(NODE, "n1")
    obj = new_volume(local_volume(entry), CONFIGURATION.classes[0], node, class_object(), CONFIGURATION)
    obj["spec"] |= {"claimRef": CLAIM}
    here.create(PERSISTENT_VOLUME, obj, phase=phase)
    return volume_name(entry, "n1", CLASS)


def after_first(monkeypatch: pytest.MonkeyPatch, method: str, kind: Kind, change: Change) -> None:
    """Make a change once, right after the first call of this method for an object of this kind."""
    original = getattr(KubeClient, method)
    done: list[bool] = []

    async def changed_after(client: KubeClient, of_kind: Kind, *rest: Any, **options: Any) -> Any:
        result = await original(client, of_kind, *rest, **options)
        if of_kind == kind and not done:
            done.append(True)
            await change(client)
        return result

    monkeypatch.setattr(KubeClient, method, changed_after)


def test_a_volume_that_the_master_deletes_during_a_hand_back_keeps_its_finalizer(
    here: Bench, monkeypatch: pytest.MonkeyPatch
):
    name = used_volume(here, "disk1", "Released")

    async def deleted(client: KubeClient) -> None:
        await client.delete(PERSISTENT_VOLUME, ObjectName(None, name))

    after_first(monkeypatch, "delete", PROVISIONER_STATUS, deleted)
    ended = here.typed("static", "hand-back", "--yes")

    assert ended.code == 1
    assert f"{name} is being deleted, and its disk is not wiped" in ended.err
    left = here.get(PERSISTENT_VOLUME, name)
    assert (objects.is_being_deleted(left), WIPE_FINALIZER in objects.finalizers(left)) == (True, True)


def test_a_node_that_comes_back_while_it_is_forgotten_keeps_its_other_volumes(
    here: Bench, monkeypatch: pytest.MonkeyPatch
):
    names = [used_volume(here, entry, "Bound") for entry in ("disk1", "disk2", "disk3")]
    here.do(lambda client: client.delete(NODE, ObjectName(None, "n1")))

    async def back(client: KubeClient) -> None:
        await client.create(NODE, node_object("n1"))

    after_first(monkeypatch, "delete", PERSISTENT_VOLUME, back)
    ended = here.typed("static", "forget", "n1", "--yes")

    assert ended.code == 1
    assert "the node exists" in ended.err
    volumes = [here.get(PERSISTENT_VOLUME, name) for name in names]
    assert [objects.is_being_deleted(each) for each in volumes] == [
        RELEASE in objects.annotations(each) for each in volumes
    ]
    assert sum(objects.is_being_deleted(each) for each in volumes) == 1


def test_a_node_that_comes_back_between_two_writes_to_a_volume_keeps_it_without_a_release(
    here: Bench, monkeypatch: pytest.MonkeyPatch
):
    name = used_volume(here, "disk1", "Bound")
    here.do(lambda client: client.delete(NODE, ObjectName(None, "n1")))

    async def bound_again(client: KubeClient) -> None:
        mark = MergePatch({"metadata": {"labels": {"changed": "yes"}}})
        await client.patch(PERSISTENT_VOLUME, ObjectName(None, name), mark)
        await client.create(NODE, node_object("n1"))

    # The deletion names the version that the first write made: it fails, and everything is read again.
    after_first(monkeypatch, "patch", PERSISTENT_VOLUME, bound_again)
    ended = here.typed("static", "forget", "n1", "--yes")

    assert ended.code == 1
    left = here.get(PERSISTENT_VOLUME, name)
    assert not objects.is_being_deleted(left)
    # With a release `as-is`, its disk would be offered dirty when its claim is gone.
    assert RELEASE not in objects.annotations(left)
