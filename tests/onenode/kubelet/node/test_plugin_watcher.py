"""The kubelet's plugin watcher on virtual time, beside an API server: who is registered, and what then stands there."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from onenode.kubelet.node.csi_node_rules import MIGRATED_ANNOTATION, NODE_IDS_ANNOTATION
from orlop.csi.error_codes import Cancelled, Internal, Unavailable
from orlop.csi.proto import csi_pb2, rpc
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, NODE
from orlop.kube.objects import ObjectName
from support.kubelet.plugin_worlds import NODE_NAME, PLUGINS, Plugin, PluginWorld, SlowWrites, is_closed

pytestmark = pytest.mark.virtual_time

A, B = "a.example.com", "b.example.com"
ME = ObjectName(None, NODE_NAME)


def names(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["name"] for entry in entries]


# ---- a plugin that does everything right -----------------------------------------------------------------------------


async def test_a_driver_that_announces_itself_is_registered_and_told_so_at_once():
    async with PluginWorld() as the, the.watcher() as watcher:
        await the.settle()
        plugin = the.make("a", Plugin(A, node_id="n-7", topology={"zone": "z1", "rack": "r2"}, max_volumes=9))
        await the.settle(0.2)

        driver = watcher.drivers[A]
        assert (driver.name, driver.node_id, driver.endpoint.path) == (A, "n-7", the.path("a"))
        assert plugin.told == [(True, "")]
        entry = {"name": A, "nodeID": "n-7", "topologyKeys": ["rack", "zone"], "allocatable": {"count": 9}}
        assert await the.csi_drivers() == [entry]
        assert (await the.annotations())[NODE_IDS_ANNOTATION] == f'{{"{A}":"n-7"}}'
        assert await the.labels() == {"zone": "z1", "rack": "r2"}


async def test_the_csinode_belongs_to_the_node_and_names_the_migrated_plugins():
    async with PluginWorld() as the, the.watcher():
        await the.settle()

        node, csi_node = await the.get(NODE), await the.get(CSI_NODE)
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": node["metadata"]["uid"]}
        assert csi_node["metadata"]["ownerReferences"] == [owner]
        assert "kubernetes.io/aws-ebs" in csi_node["metadata"]["annotations"][MIGRATED_ANNOTATION]


async def test_the_driver_is_asked_at_the_endpoint_it_names():
    async with PluginWorld() as the, the.watcher() as watcher:
        driver = the.put_driver("/host/csi.sock", Plugin(A, node_id="behind"))
        the.make("a", Plugin(A, node_id="not this one", endpoint="/host/csi.sock"))
        await the.settle()

        assert watcher.drivers[A].node_id == "behind"
        assert driver.asked == ["NodeGetInfo"]
        assert await watcher.drivers[A].capabilities() == {"STAGE_UNSTAGE_VOLUME"}


async def test_what_is_there_when_the_watcher_begins_is_registered_too():
    async with PluginWorld() as the:
        the.make("a", Plugin(A))
        the.make("b", Plugin(B))
        async with the.watcher() as watcher:
            await the.settle()

            assert set(watcher.drivers) == {A, B}
            assert sorted(names(await the.csi_drivers())) == [A, B]


async def test_entries_of_drivers_that_others_wrote_are_kept():
    async with PluginWorld() as the:
        other = {"name": "other.example.com", "nodeID": "x", "topologyKeys": ["k"]}
        await the.on.client().create(CSI_NODE, {"metadata": {"name": NODE_NAME}, "spec": {"drivers": [other]}})
        async with the.watcher():
            the.make("a", Plugin(A))
            await the.settle()
            assert names(await the.csi_drivers()) == ["other.example.com", A]

            the.remove("a")
            await the.settle()
            assert await the.csi_drivers() == [other]


async def test_nothing_is_written_that_stands_there_already():
    async with PluginWorld() as the:
        the.make("a", Plugin(A, topology={"zone": "z1"}, max_volumes=3))
        async with the.watcher():
            await the.settle()
        before = [await the.get(NODE), await the.get(CSI_NODE)]
        async with the.watcher() as watcher:
            await the.settle()

            assert list(watcher.drivers) == [A]
            assert [await the.get(NODE), await the.get(CSI_NODE)] == before


async def test_an_idle_watcher_does_nothing_at_all():
    async with PluginWorld() as the, the.watcher():
        plugin = the.make("a", Plugin(A))
        await the.settle(1.0)
        asked, version = list(plugin.asked), (await the.get(CSI_NODE))["metadata"]["resourceVersion"]
        await the.settle(24 * 3600.0)

        assert plugin.asked == asked
        assert (await the.get(CSI_NODE))["metadata"]["resourceVersion"] == version


# ---- one that goes ---------------------------------------------------------------------------------------------------


async def test_a_driver_whose_socket_is_removed_is_forgotten_and_its_labels_stay():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, topology={"zone": "z1"}))
        await the.settle()
        client = watcher.drivers[A].client
        the.remove("a")
        await the.settle(0.2)

        assert dict(watcher.drivers) == {}
        assert await the.csi_drivers() == []
        assert NODE_IDS_ANNOTATION not in await the.annotations()
        assert await the.labels() == {"zone": "z1"}
        with pytest.raises(Cancelled):
            await client.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest())


async def test_a_socket_that_is_made_anew_registers_the_driver_again_with_what_it_says_now():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, node_id="old"))
        await the.settle()
        the.make("a", Plugin(A, node_id="new"))
        await the.settle()

        assert watcher.drivers[A].node_id == "new"
        assert [entry["nodeID"] for entry in await the.csi_drivers()] == ["new"]
        assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "new"}


async def test_a_plugin_that_died_without_removing_its_socket_stays_registered():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A))
        await the.settle()
        the.folder.kill()
        await the.settle(3600.0)

        assert list(watcher.drivers) == [A]


async def test_a_socket_removed_while_its_driver_is_asked_is_forgotten_when_that_is_over():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, behaviour={"NodeGetInfo": 30.0}))
        await the.settle(1.0)
        the.remove("a")
        await the.settle(60.0)

        assert dict(watcher.drivers) == {}
        assert await the.csi_drivers() == []


async def test_stopping_the_watcher_closes_all_connections_and_leaves_the_api_as_it_is():
    async with PluginWorld() as the:
        the.make("a", Plugin(A))
        async with the.watcher():
            await the.settle()
        await the.settle()

        assert all(is_closed(connection) for connection in the.connections)
        assert names(await the.csi_drivers()) == [A]


async def test_an_entry_left_from_before_with_another_node_id_is_replaced():
    async with PluginWorld() as the:
        the.make("a", Plugin(A, node_id="old"))
        async with the.watcher():
            await the.settle()
        the.make("a", Plugin(A, node_id="new"))
        async with the.watcher() as watcher:
            await the.settle(2.0)

            assert watcher.drivers[A].node_id == "new"
            assert [entry["nodeID"] for entry in await the.csi_drivers()] == ["new"]


# ---- ones that answer late, wrongly or never -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GetInfo", "NodeGetInfo", "NotifyRegistrationStatus"])
@pytest.mark.parametrize("fault", [None, b"\xff\xff\xff", Unavailable("not today"), Internal("broken")], ids=str)
async def test_a_plugin_that_fails_is_not_registered_and_harms_no_other(method: str, fault: Any):
    if fault == b"\xff\xff\xff" and method == "NotifyRegistrationStatus":
        fault = Internal("any bytes are an empty message")
    async with PluginWorld() as the, the.watcher() as watcher:
        await the.settle()
        bad = the.make("0-bad", Plugin(B, behaviour={method: fault}))
        the.make("a", Plugin(A))
        await the.settle(0.2)
        assert A in watcher.drivers

        await the.settle(300.0)
        assert list(watcher.drivers) == [A]
        assert names(await the.csi_drivers()) == [A]
        assert not any(registered for registered, _ in bad.told)

        bad.behaviour.clear()
        await the.settle(300.0)
        assert set(watcher.drivers) == {A, B}
        assert bad.told[-1] == (True, "")


async def test_a_plugin_that_answers_late_but_in_time_is_registered():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, behaviour={"GetInfo": 0.9, "NodeGetInfo": 119.0, "NotifyRegistrationStatus": 4.9}))
        await the.settle(130.0)

        assert list(watcher.drivers) == [A]


async def test_failures_are_retried_after_half_a_second_and_ever_less_often_up_to_two_minutes():
    async with PluginWorld() as the, the.watcher():
        plugin = the.make("a", Plugin(A, behaviour={"GetInfo": Internal("no")}))
        seen: list[float] = []
        for _ in range(5000):
            before = len(plugin.asked)
            await the.clock.sleep(0.1)
            seen += [the.clock.elapsed()] if len(plugin.asked) > before else []
        gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(seen)]

        assert gaps[:8] == pytest.approx([0.5, 1, 2, 4, 8, 16, 32, 64], abs=0.11)
        assert gaps[8:10] == pytest.approx([122, 122], abs=0.11)


async def test_making_a_socket_anew_does_not_shorten_the_wait():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, behaviour={"GetInfo": Internal("no")}))
        await the.settle(100.0)
        good = the.make("a", Plugin(A))
        await the.settle(5.0)
        assert (good.asked, dict(watcher.drivers)) == ([], {})

        await the.settle(120.0)
        assert list(watcher.drivers) == [A]


async def test_a_stale_socket_is_dialled_for_ten_seconds_and_then_again_later():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A))
        the.folder.kill()
        await the.settle(10.2)
        the.make("a", Plugin(A))
        await the.settle(1.0)

        assert list(watcher.drivers) == [A]


async def test_a_driver_that_says_no_node_id_is_refused_in_kubelet_s_words():
    async with PluginWorld() as the, the.watcher() as watcher:
        plugin = the.make("a", Plugin(A, node_id=""))
        await the.settle()

        assert dict(watcher.drivers) == {}
        assert "plugin registration failed with err: error updating Node object" in plugin.told[0][1]
        assert "driverNodeID must not be empty" in plugin.told[0][1]


async def test_an_error_of_the_driver_is_told_to_its_registrar_as_kubelet_tells_it():
    async with PluginWorld() as the, the.watcher():
        plugin = the.make("a", Plugin(A, behaviour={"NodeGetInfo": Unavailable("not today")}))
        await the.settle()

        why = "RegisterPlugin error -- plugin registration failed with err: rpc error: code = Unavailable desc = "
        assert plugin.told[0] == (False, f"{why}not today")


@pytest.mark.parametrize(
    ("plugin", "sentence"),
    [
        (Plugin(kind="DevicePlugin"), "no handler registered for plugin type: DevicePlugin at socket "),
        (Plugin(versions=()), "Plugin returned an empty list for supported versions"),
        (Plugin(versions=("0.3.0",)), "highest supported version reported by driver is 0.3.0, must be v1.x"),
        (Plugin(versions=("2.0.0", "x")), "could not find a highest supported version"),
        (Plugin(endpoint="tcp://1.2.3.4:5"), "is no absolute path of a socket"),
        (Plugin(endpoint="relative.sock"), "is no absolute path of a socket"),
        (Plugin(endpoint="/" + "x" * 200), "the kernel takes at most 107"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_what_kubelet_would_refuse_is_refused_with_its_sentence(plugin: Plugin, sentence: str):
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", plugin)
        await the.settle()

        assert dict(watcher.drivers) == {}
        assert not plugin.told[0][0]
        assert plugin.told[0][1].startswith("RegisterPlugin error -- ")
        assert sentence in plugin.told[0][1]
        assert await the.csi_drivers() == []


# ---- labels ----------------------------------------------------------------------------------------------------------


async def test_a_label_with_another_value_refuses_the_driver_and_is_not_changed():
    async with PluginWorld(labels={"zone": "mine"}) as the, the.watcher() as watcher:
        plugin = the.make("a", Plugin(A, topology={"zone": "other", "rack": "r"}))
        await the.settle()

        collision = (
            'detected topology value collision: driver reported "zone":"other" but existing label is "zone":"mine"'
        )
        assert collision in plugin.told[0][1]
        assert dict(watcher.drivers) == {}
        assert await the.labels() == {"zone": "mine"}
        assert await the.csi_drivers() == []

        await the.on.client().patch(NODE, ME, MergePatch({"metadata": {"labels": {"zone": None}}}))
        await the.settle(60.0)
        assert list(watcher.drivers) == [A]
        assert await the.labels() == {"zone": "other", "rack": "r"}


async def test_two_drivers_may_say_the_same_of_the_node():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("a", Plugin(A, topology={"zone": "z"}))
        the.make("b", Plugin(B, topology={"zone": "z"}))
        await the.settle()

        assert set(watcher.drivers) == {A, B}


# ---- one name, two plugins -------------------------------------------------------------------------------------------


async def test_of_two_with_one_name_and_version_the_second_waits_until_the_first_goes():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A, node_id="1"))
        await the.settle()
        second = the.make("second", Plugin(A, node_id="2"))
        await the.settle()
        assert watcher.drivers[A].node_id == "1"
        refusal = 'Another driver with the same name is already registered with a higher supported version: "1.0.0"'
        assert refusal in second.told[0][1]

        the.remove("first")
        await the.settle(130.0)
        assert watcher.drivers[A].node_id == "2"


async def test_removing_a_socket_that_was_refused_does_nothing():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A, node_id="1"))
        await the.settle()
        the.make("second", Plugin(A, node_id="2"))
        await the.settle()
        the.remove("second")
        await the.settle()

        assert watcher.drivers[A].node_id == "1"


async def test_a_higher_version_takes_the_name_over():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A))
        await the.settle()
        client = watcher.drivers[A].client
        the.make("second", Plugin(A, versions=("1.0.0", "1.1.0")))
        await the.settle()

        assert watcher.drivers[A].endpoint.path == the.path("second")
        with pytest.raises(Cancelled):
            await client.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest())


async def test_removing_the_socket_of_a_driver_that_was_taken_over_deregisters_the_new_one_as_kubelet_does():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A))
        await the.settle()
        the.make("second", Plugin(A, versions=("1.1.0",)))
        await the.settle()
        the.remove("first")
        await the.settle(600.0)
        assert dict(watcher.drivers) == {}
        assert await the.csi_drivers() == []

        the.make("second", Plugin(A, versions=("1.1.0",)))
        await the.settle()
        assert list(watcher.drivers) == [A]


@pytest.mark.parametrize("fault", [Internal("no"), None], ids=["fails", "hangs"])
async def test_a_newcomer_with_a_higher_version_that_fails_does_not_harm_who_has_the_name(fault: Any):
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A, node_id="1", max_volumes=4))
        await the.settle()
        the.make("second", Plugin(A, node_id="2", versions=("1.9",), behaviour={"NodeGetInfo": fault}))
        for _ in range(20):
            await the.settle(20.0)
            assert watcher.drivers[A].node_id == "1"

        assert await the.csi_drivers() == [{"name": A, "nodeID": "1", "allocatable": {"count": 4}}]
        assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "1"}


# ---- names that no component takes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "../../etc", "a/b", "spa ce", "x" * 64, "-a", "a\nb", "ä"])
async def test_a_name_that_cannot_be_a_path_is_refused_with_an_event_on_the_node(name: str):
    async with PluginWorld() as the, the.watcher() as watcher:
        plugin = the.make("a", Plugin(name))
        await the.settle()

        assert dict(watcher.drivers) == {}
        assert "is no driver's" in plugin.told[0][1]
        [event] = await the.events()
        assert (event["regarding"]["kind"], event["regarding"]["name"]) == ("Node", NODE_NAME)
        assert (event["type"], event["reason"]) == ("Warning", "InvalidCSIDriverName")


async def test_a_pod_that_asks_for_such_a_name_makes_the_same_event():
    async with PluginWorld() as the, the.watcher() as watcher:
        assert watcher.driver("../escape") is None
        await the.settle()

        [event] = await the.events()
        assert "../escape" in event["note"]


# ---- drivers that nobody announces -----------------------------------------------------------------------------------


def fixed(name: str) -> str:
    return f"{PLUGINS}/{name}/csi.sock"


async def test_a_driver_at_its_fixed_path_is_found_when_it_is_wanted_for_a_while():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(A, node_id="old-style"))
        await the.settle(60.0)
        assert dict(watcher.drivers) == {}

        assert watcher.driver(A) is None
        await the.settle(4.0)
        assert watcher.driver(A) is None
        await the.settle(2.0)
        found = watcher.find(A)
        assert found is not None
        assert watcher.driver(A) is found.client
        assert found.node_id == "old-style"
        assert names(await the.csi_drivers()) == [A]
        assert [event["reason"] for event in await the.events()] == ["UnannouncedCSIDriver"]


async def test_waiting_for_a_driver_finds_it_at_its_fixed_path_too():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(A))
        async with the.clock.timeout(30.0):
            assert (await watcher.wait_for(A)).name == A


async def test_waiting_for_a_driver_ends_when_it_announces_itself():
    async with PluginWorld() as the, the.watcher() as watcher:
        plugin = Plugin(A, behaviour={"NodeGetInfo": 100.0})
        the.make("a", plugin)
        async with the.clock.timeout(101.0):
            assert (await watcher.wait_for(A)).name == A


async def test_a_driver_that_announces_itself_takes_over_from_its_fixed_path_and_keeps_its_connection():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(A))
        client = (await watcher.wait_for(A)).client
        plugin = the.make("a", Plugin(A, endpoint=fixed(A)))
        await the.settle()

        assert plugin.told == [(True, "")]
        assert watcher.drivers[A].client is client
        assert str(watcher.drivers[A].version) == "1.0.0"
        await client.call(rpc.NODE_GET_INFO, csi_pb2.NodeGetInfoRequest())


async def test_a_driver_at_another_s_fixed_path_is_not_taken():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(B))
        watcher.driver(A)
        await the.settle(60.0)

        assert dict(watcher.drivers) == {}
        assert await the.csi_drivers() == []


async def test_an_unannounced_driver_is_forgotten_when_its_socket_is_gone():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(A))
        await watcher.wait_for(A)
        del the.elsewhere.there[fixed(A)]
        await the.settle(11.0)

        assert dict(watcher.drivers) == {}
        assert await the.csi_drivers() == []


async def test_a_driver_that_is_nowhere_is_not_found():
    async with PluginWorld() as the, the.watcher() as watcher:
        for _ in range(10):
            assert watcher.driver(A) is None
            await the.settle(10.0)

        assert await the.events() == []


# ---- the API server --------------------------------------------------------------------------------------------------


async def test_a_csinode_of_a_node_that_had_the_name_before_is_replaced():
    async with PluginWorld() as the:
        owner = {"apiVersion": "v1", "kind": "Node", "name": NODE_NAME, "uid": "gone"}
        stale = {"metadata": {"name": NODE_NAME, "ownerReferences": [owner]}, "spec": {"drivers": []}}
        stale["spec"] = {"drivers": [{"name": B, "nodeID": "of another"}]}
        await the.on.client().create(CSI_NODE, stale)
        async with the.watcher():
            the.make("a", Plugin(A))
            await the.settle()

        assert names(await the.csi_drivers()) == [A]
        assert (await the.get(CSI_NODE))["metadata"]["ownerReferences"][0]["uid"] != "gone"


async def test_a_driver_waits_for_a_node_that_is_not_there_yet():
    async with PluginWorld() as the:
        await the.on.client().delete(NODE, ME)
        async with the.watcher() as watcher:
            plugin = the.make("a", Plugin(A))
            await the.settle(5.0)
            assert dict(watcher.drivers) == {}
            assert "plugin registration failed" in plugin.told[0][1]

            await the.on.client().create(NODE, {"metadata": {"name": NODE_NAME}})
            await the.settle(30.0)
            assert list(watcher.drivers) == [A]
            assert names(await the.csi_drivers()) == [A]


async def test_others_may_write_on_the_node_meanwhile():
    async with PluginWorld() as the, the.watcher() as watcher:
        for number in range(5):
            the.make(f"s{number}", Plugin(f"d{number}.example.com", topology={f"k{number}": "v"}))
            changes = {"metadata": {"labels": {f"other{number}": "x"}, "annotations": {f"a{number}": "y"}}}
            await the.on.client().patch(NODE, ME, MergePatch(changes))
        await the.settle()

        assert len(watcher.drivers) == 5
        assert len(await the.labels()) == 10
        assert len(json.loads((await the.annotations())[NODE_IDS_ANNOTATION])) == 5


# ---- hostile ones ----------------------------------------------------------------------------------------------------


async def test_one_that_claims_a_name_and_never_answers_keeps_its_owner_from_nothing():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("hostile", Plugin(A, versions=("1.9",), behaviour={"NodeGetInfo": None}))
        await the.settle(1.0)
        the.make("owner", Plugin(A, node_id="1"))
        await the.settle(1.0)
        assert watcher.drivers[A].node_id == "1"

        the.make("owner", Plugin(A, node_id="2"))
        await the.settle(1.0)
        assert watcher.drivers[A].node_id == "2"
        await the.settle(1000.0)
        assert watcher.drivers[A].node_id == "2"


async def test_two_of_one_name_that_come_at_once_do_not_mix_what_they_say():
    async with PluginWorld() as the, the.watcher() as watcher:
        slow, fast = Plugin(A, node_id="slow", behaviour={"NodeGetInfo": 3.0}), Plugin(A, node_id="fast")
        the.make("a", slow)
        the.make("b", fast)
        await the.settle(10.0)

        assert watcher.drivers[A].node_id == "fast"
        assert watcher.drivers[A].endpoint.path == the.path("b")
        assert "already registered" in slow.told[0][1]
        assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "fast"}


async def test_hundreds_of_plugins_that_never_answer_keep_nobody_waiting():
    async with PluginWorld() as the, the.watcher() as watcher:
        for number in range(200):
            method = ("GetInfo", "NodeGetInfo", "NotifyRegistrationStatus")[number % 3]
            the.make(f"{number:03}", Plugin(f"d{number}.example.com", behaviour={method: None}))
        the.make("z", Plugin(A))
        await the.settle(1.0)

        assert A in watcher.drivers


async def test_connections_to_plugins_that_failed_are_not_kept():
    async with PluginWorld() as the, the.watcher() as watcher:
        for number, fault in enumerate((None, Internal("no"), b"\xff")):
            for method in ("GetInfo", "NodeGetInfo"):
                the.make(f"{number}{method}", Plugin(f"d{number}.{method}.e", behaviour={method: fault}))
        the.make("ok", Plugin(A))
        await the.settle(121.0)
        kept = [connection for connection in the.connections if not is_closed(connection)]

        assert list(watcher.drivers) == [A]
        assert len(kept) <= 1 + 6


async def test_a_newcomer_whose_facts_cannot_be_written_leaves_those_of_who_has_the_name():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.make("first", Plugin(A, node_id="1"))
        await the.settle()
        second = the.make("second", Plugin(A, node_id="2", versions=("1.9",)))
        await the.settle(0.4)

        assert "error updating CSINode object" in second.told[0][1]  # an entry's node id is fixed while it is there
        assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "1"}
        assert [entry["nodeID"] for entry in await the.csi_drivers()] == ["1"]
        assert watcher.drivers[A].node_id == "1"


async def test_one_that_goes_while_another_takes_its_name_over_takes_nothing_of_it_away():
    async with PluginWorld() as the, the.watcher(SlowWrites(the)) as watcher:
        the.make("first", Plugin(A, max_volumes=1))
        await the.settle(10.0)
        the.make("second", Plugin(A, max_volumes=2, versions=("1.1",)))
        await the.settle(0.5)
        the.remove("first")
        await the.settle(10.0)

        assert watcher.drivers[A].endpoint.path == the.path("second")
        assert await the.csi_drivers() == [{"name": A, "nodeID": "id-1", "allocatable": {"count": 2}}]
        assert json.loads((await the.annotations())[NODE_IDS_ANNOTATION]) == {A: "id-1"}


async def test_a_driver_that_announced_itself_does_not_go_with_its_former_socket_at_the_fixed_path():
    async with PluginWorld() as the, the.watcher() as watcher:
        the.put_driver(fixed(A), Plugin(A))
        await watcher.wait_for(A)
        the.make("a", Plugin(A))
        await the.settle()
        del the.elsewhere.there[fixed(A)]
        await the.settle(60.0)

        assert watcher.drivers[A].endpoint.path == the.path("a")
