"""`orlop drives …` as people type it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import msgspec
import pytest
import yaml

from onenode.apiserver.access.rbac_rules import User
from orlop.admin.drives.drive_requests import DriveRequests
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, PERSISTENT_VOLUME
from orlop.kube.objects import Object, ObjectName
from orlop.records.api_record import new_object
from orlop.records.drive import DRIVE, Allocation
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerSpec
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import DISK_IDENTITY
from support.drives.typed_commands import GIB, Bench, bench, drive_id
from support.processes.orlop_process import run_here
from support.static_volumes.static_objects import local_volume

D1, D2, D3 = drive_id(1), drive_id(2), drive_id(3)
SDB = {"name": "sdb", "path": "/dev/sdb", "fingerprint": "f-sdb", "bytes": 64 * GIB, "model": "Fast 1", "serial": "S1"}
SDC = {"name": "sdc", "path": "/dev/sdc", "fingerprint": "f-sdc", "bytes": 64 * GIB, "fileSystem": "ext4"}
SDA = {"name": "sda", "path": "/dev/sda", "fingerprint": "f-sda", "bytes": GIB, "unusable": ["it is mounted at /"]}
DRIVE_DEVICE = {"name": "sdd", "path": "/dev/sdd", "bytes": GIB, "drive": D1}


@pytest.fixture
def here() -> Iterator[Bench]:
    with bench() as made:
        yield made


def allocated(*volumes: str, **spec: Any) -> dict[str, Any]:
    return {"spec": {"allocations": tuple(Allocation(volume=volume, bytes=GIB) for volume in volumes), **spec}}


# ---- list and info ---------------------------------------------------------------------------------------------------


def test_a_list_has_what_is_free_by_the_allocations_and_the_decisions_of_the_operator(here: Bench):
    here.drive(1, **allocated("v1", tier="hot"))
    here.drive(2, "n2", state="Lost", spec={"unschedulable": True})
    listed = here.typed("drives", "list")
    assert listed.code == 0
    assert [line.split() for line in listed.out.splitlines()] == [
        ["DRIVE", "NODE", "DEVICE", "CAPACITY", "FREE", "VOLUMES", "TIER", "STATE"],
        ["00000001", "n1", "sdb", "10Gi", "9.0Gi", "1", "hot", "Ready"],
        ["00000002", "n2", "sdc", "10Gi", "10Gi", "0", "default", "Lost,Cordoned"],
    ]


def test_names_are_as_long_as_they_must_be_to_differ_and_whole_in_the_wide_list(here: Bench):
    here.drive(0x11111111)
    here.drive(0x11111112)
    assert {line.split()[0] for line in here.typed("drives", "list").out.splitlines()[1:]} == {"11111111", "11111112"}
    wide = here.typed("drives", "list", "-o", "wide").out
    assert drive_id(0x11111111) in wide
    assert "directory,image" in wide


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--node", "n1"], {D1, D3}),
        (["--node", "n1", "--node", "n2"], {D1, D2, D3}),
        (["--status", "lost"], {D2}),
        (["--status", "Cordoned"], {D3}),
        (["--tier", "hot"], {D3}),
        (["-l", "rack in (a,b)"], {D1}),
        (["-l", "!rack", "--node", "n1"], {D3}),
    ],
)
def test_a_list_is_filtered(here: Bench, options: list[str], names: set[str]):
    here.drive(1, labels={"rack": "a"})
    here.drive(2, "n2", state="Lost")
    here.drive(3, spec={"tier": "hot", "unschedulable": True})
    assert set(here.typed("drives", "list", "-o", "name", *options).out.split()) == names


def test_programs_get_every_fact(here: Bench):
    here.drive(1, labels={"rack": "a"}, **allocated("v1"))
    (row,) = here.typed("drives", "list", "-o", "json").json
    assert (row["name"], row["node"], row["freeBytes"], row["labels"]) == (D1, "n1", 9 * GIB, {"rack": "a"})
    assert row["allocations"] == [{"volume": "v1", "bytes": GIB}]
    assert yaml.safe_load(here.typed("drives", "info", D1, "-o", "yaml").out) == row


def test_an_empty_list_names_the_next_command(here: Bench):
    listed = here.typed("drives", "list")
    assert (listed.code, listed.out) == (0, "")
    assert "orlop drives discover" in listed.err


def test_info_adds_up_each_node_and_all(here: Bench):
    here.drive(1, **allocated("v1", "v2"))
    here.drive(2)
    here.drive(3, "n2", state="Lost")
    assert [line.split() for line in here.typed("drives", "info").out.splitlines()] == [
        ["NODE", "DRIVES", "READY", "CAPACITY", "ALLOCATED", "FREE", "VOLUMES"],
        ["n1", "2", "2", "20Gi", "2.0Gi", "18Gi", "2"],
        ["n2", "1", "0", "10Gi", "0", "10Gi", "0"],
        ["(all)", "3", "2", "30Gi", "2.0Gi", "28Gi", "2"],
    ]


def test_info_of_one_drive_shows_why_it_is_as_it_is_and_its_volumes(here: Bench):
    here.drive(1, state="Error", message="The disk returned an I/O error.", **allocated("v1"))
    shown = here.typed("drives", "info", "n1/sdb").out
    assert "Error" in shown
    assert "The disk returned an I/O error." in shown
    assert "v1      1.0Gi" in shown


@pytest.mark.parametrize(("word", "code"), [("0000", 2), ("n1/nope", 3), ("ffff", 3), ("00", 3)])
def test_a_word_that_names_no_drive_or_several_has_its_own_exit_code(here: Bench, word: str, code: int):
    here.drive(1)
    here.drive(2)
    assert here.typed("drives", "info", word).code == code


def test_what_an_object_holds_cannot_command_the_terminal(here: Bench):
    here.drive(1, message="\x1b[2Jgone", device={"name": "sd\x1b[31m", "model": "\x07"})
    for words in (["list", "-o", "wide"], ["info", D1], ["list"]):
        shown = here.typed("drives", *words).out
        assert all(line.isprintable() for line in shown.split("\n"))


def test_a_cluster_without_drives_is_named_with_what_to_install(here: Bench):
    for definition in here.all(CUSTOM_RESOURCE_DEFINITION):
        name = ObjectName(None, definition["metadata"]["name"])
        here.do(lambda client, name=name: client.delete(CUSTOM_RESOURCE_DEFINITION, name))
    listed = here.typed("drives", "list")
    assert listed.code == 1
    assert "install deploy/manifests/drives, or start `orlop up`" in listed.err


# ---- changes ---------------------------------------------------------------------------------------------------------


def test_drives_are_cordoned_and_uncordoned_and_repeating_it_is_no_failure(here: Bench):
    here.drive(1)
    first, again = here.typed("drives", "cordon", D1), here.typed("drives", "cordon", D1)
    assert (first.code, again.code) == (0, 0)
    assert "is cordoned." in first.out
    assert "is cordoned already." in again.out
    assert here.get(DRIVE, D1)["spec"]["unschedulable"] is True
    here.typed("drives", "uncordon", "n1/sdb")
    assert here.get(DRIVE, D1)["spec"]["unschedulable"] is False


def test_all_drives_of_a_node_are_cordoned_and_no_other(here: Bench):
    for number, node in ((1, "n1"), (2, "n1"), (3, "n2")):
        here.drive(number, node)
    assert here.typed("drives", "cordon", "--all", "--node", "n1").code == 0
    assert [bool(each["spec"].get("unschedulable")) for each in here.all(DRIVE)] == [True, True, False]


@pytest.mark.parametrize("words", [["cordon"], ["cordon", D1, "--all"], ["cordon", D1, "--node", "n1"], ["label", D1]])
def test_wrong_use_changes_nothing(here: Bench, words: list[str]):
    here.drive(1)
    before = here.get(DRIVE, D1)
    assert here.typed("drives", *words).code == 2
    assert here.get(DRIVE, D1) == before


def test_one_unknown_drive_among_several_changes_none(here: Bench):
    here.drive(1)
    assert here.typed("drives", "cordon", D1, "n9/sdz").code == 3
    assert "unschedulable" not in here.get(DRIVE, D1)["spec"]


@pytest.mark.parametrize(
    "words", [["cordon"], ["tier", "hot"], ["label", "a=b"], ["remove"]], ids=lambda words: str(words[0])
)
def test_a_dry_run_writes_nothing(here: Bench, words: list[str]):
    here.drive(1)
    before = here.get(DRIVE, D1)
    shown = here.typed("drives", *words, D1, "--dry-run")
    assert shown.code == 0
    assert "dry run: nothing was changed" in shown.out
    assert here.get(DRIVE, D1) == before


def test_a_tier_is_set(here: Bench):
    here.drive(1)
    assert here.typed("drives", "tier", "cold", D1).code == 0
    assert here.get(DRIVE, D1)["spec"]["tier"] == "cold"
    assert here.typed("drives", "tier", "lukewarm", D1).code == 2


def test_labels_are_set_and_removed_and_replaced_only_on_request(here: Bench):
    here.drive(1, labels={"rack": "a", "old": "x"})
    assert here.typed("drives", "label", D1, "row=7", "old-").code == 0
    assert here.get(DRIVE, D1)["metadata"]["labels"] == {"rack": "a", "row": "7"}
    refused = here.typed("drives", "label", D1, "rack=b")
    assert refused.code == 1
    assert "has the label rack=a already: --overwrite replaces it" in refused.err
    assert here.typed("drives", "label", D1, "rack=b", "--overwrite").code == 0
    assert here.get(DRIVE, D1)["metadata"]["labels"] == {"rack": "b", "row": "7"}
    assert here.typed("drives", "label", D1, "-/bad=x").code == 2


def test_an_empty_drive_is_removed(here: Bench):
    here.drive(1)
    assert here.typed("drives", "remove", D1).code == 0
    assert here.get(DRIVE, D1)["spec"]["removing"] is True
    assert "Removing" in here.typed("drives", "list").out


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        (allocated("v1"), "holds the volume v1: only an empty drive can be removed"),
        ({"unrecordedVolumes": [{"volume": "v9", "bytes": 1}]}, "holds the volume v9, which no object describes"),
        ({"allocationsRestored": False}, "may hold volumes that are not listed yet"),
    ],
)
def test_a_drive_that_may_hold_volumes_is_not_removed(here: Bench, facts: dict[str, Any], why: str):
    here.drive(1, **facts)
    refused = here.typed("drives", "remove", D1)
    assert refused.code == 1
    assert why in refused.err
    assert "removing" not in here.get(DRIVE, D1)["spec"]


def test_a_lost_drive_that_lists_nothing_is_removed_though_its_node_cannot_compare_it(here: Bench):
    here.drive(1, state="Lost", allocationsRestored=False)
    assert here.typed("drives", "remove", D1).code == 0


# ---- discover --------------------------------------------------------------------------------------------------------


def test_devices_are_shown_with_why_one_cannot_be_a_drive(here: Bench):
    adopt = f"it is the drive {D2}, which this node does not use: 'orlop drives adopt' takes it over"
    foreign = {"name": "sde", "path": "/dev/sde", "bytes": GIB, "drive": D2, "unusable": [adopt]}
    here.devices("n1", SDA, SDB, SDC, DRIVE_DEVICE, foreign)
    shown = here.typed("drives", "discover")
    lines = shown.out.splitlines()
    assert lines[1].endswith("no: it is mounted at /")
    assert "n1/sdb" in lines[2]
    assert lines[2].endswith("yes")
    assert lines[3].endswith("with --force")
    assert lines[4].endswith(f"no: it is the drive {D1}")
    assert lines[5].endswith(f"no: {adopt}")
    assert "orlop drives init n1/sdb" in shown.err
    usable = here.typed("drives", "discover", "--usable", "-o", "json").json
    assert [(each["node"], each["name"]) for each in usable if each["isUsable"]] == [("n1", "sdb"), ("n1", "sdc")]


def test_a_cluster_whose_nodes_report_nothing_is_named_as_such(here: Bench):
    assert "No node has reported its devices" in here.typed("drives", "discover").err


def test_a_node_that_has_just_started_is_waited_for_before_a_folder_is_refused(here: Bench):
    refused = here.typed("drives", "add-folder", "/srv/a", "--capacity", "1Gi")
    assert (refused.code, here.all(DRIVE_REQUEST)) == (1, [])
    waiting, why = refused.err.splitlines()
    assert waiting == "Waiting for a node to report its devices …"
    assert "No node has reported its devices" in why
    assert 5 <= here.clock.passed < 10

    async def report_later() -> None:
        while here.clock.passed < 7:
            await asyncio.sleep(0)
        await here.client.create(NODE_DEVICES, new_object("NodeDevices", "n1", NodeDevicesSpec(node_name="n1")))

    async def start(_client: KubeClient) -> asyncio.Task[None]:
        return asyncio.create_task(report_later())

    here.do(start)
    with here.node("n1", lambda _spec: {"state": "Done", "results": [{"target": "/srv/a", "message": "made"}]}) as seen:
        made = here.typed("drives", "add-folder", "/srv/a", "--capacity", "1Gi")
    assert (made.code, len(seen)) == (0, 1)
    assert made.err.startswith("Waiting for a node to report its devices …\n")


# ---- init and add-folder ---------------------------------------------------------------------------------------------


def formatted(spec: DriveRequestSpec) -> Object:
    results = [{"target": each.name, "drive": D1, "message": "It was formatted."} for each in spec.devices]
    return {"state": "Done", "results": results}


def test_a_disk_is_formatted_after_a_question_by_a_request_with_the_fingerprint_that_was_shown(here: Bench):
    here.devices("n1", SDA, SDB)
    with here.node("n1", formatted) as requests:
        done = here.typed("drives", "init", "n1/sdb", answer="y\n")
    assert (done.code, done.out) == (0, f"n1: sdb: It was formatted. (drive {D1})\n")
    assert "Everything on this device will be destroyed" in done.err
    assert "Fast 1" in done.err
    (request,) = requests
    assert request["spec"] == {
        "nodeName": "n1",
        "devices": [{"name": "sdb", "fingerprint": "f-sdb"}],
        "fileSystem": "xfs",
    }
    assert here.all(DRIVE_REQUEST) == []


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("", 130)])
def test_without_consent_no_request_is_made(here: Bench, answer: str, code: int):
    here.devices("n1", SDB)
    with here.node("n1", formatted) as requests:
        refused = here.typed("drives", "init", "n1/sdb", answer=answer)
    assert (refused.code, requests) == (code, [])
    assert "Nothing was changed." in refused.err


def test_without_a_terminal_nobody_is_asked_and_nothing_is_made(here: Bench):
    here.devices("n1", SDB)
    refused = here.typed("drives", "init", "n1/sdb")
    assert refused.code == 2
    assert "--yes" in refused.err
    assert here.all(DRIVE_REQUEST) == []


def test_a_dry_run_goes_to_the_node_as_one_and_asks_nobody(here: Bench):
    here.devices("n1", SDB)
    with here.node("n1", formatted) as requests:
        assert here.typed("drives", "init", "sdb", "--dry-run").code == 0
    assert [each["spec"]["dryRun"] for each in requests] == [True]


def test_devices_of_several_nodes_are_made_at_once_and_a_failure_of_one_fails_the_command(here: Bench):
    here.devices("n1", SDB)
    here.devices("n2", SDB, SDC)

    def refuses(spec: DriveRequestSpec) -> Object:
        results = [{"target": each.name, "error": "it has changed"} for each in spec.devices]
        return {"state": "Error", "results": results}

    with here.node("n1", formatted) as first, here.node("n2", refuses) as second:
        done = here.typed("drives", "init", "n1/sdb", "n2/dev/sdb", "n2/sdc", "--force", "--yes")
    assert done.code == 1
    assert "n2: sdb: failed: it has changed" in done.err
    assert f"n1: sdb: It was formatted. (drive {D1})" in done.out
    assert len(first) == len(second) == 1
    assert [each["force"] for each in second[0]["spec"]["devices"]] == [True, True]


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["n1/sda"], 1, "n1/sda cannot become a drive: it is mounted at /."),
        (["n1/sdc"], 1, "n1/sdc holds a file system or signature (ext4): --force destroys what it has."),
        (["n1/sdd"], 1, f"n1/sdd cannot become a drive: it is the drive {D1}."),
        (["n1/sdz"], 3, "There is no device sdz on the node n1."),
        (["sdb"], 2, "Several nodes have a device sdb: n1/sdb, n2/sdb."),
        (["n1/sdb", "--node", "n2"], 2, "leave one of them out"),
        ([], 2, "or use --all"),
        (["--all", "--force"], 2, "name each device"),
    ],
)
def test_what_cannot_be_made_a_drive_is_refused_before_a_request(here: Bench, words: list[str], code: int, why: str):
    here.devices("n1", SDA, SDB, SDC, DRIVE_DEVICE)
    here.devices("n2", SDB)
    refused = here.typed("drives", "init", *words, "--yes")
    assert refused.code == code
    assert why in refused.err
    assert here.all(DRIVE_REQUEST) == []


def static_volume(entry: str, **annotations: str) -> Object:
    annotations["pv.kubernetes.io/provisioned-by"] = "local-volume-provisioner-n1"
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "raw",
        "volumeMode": "Block",
        "local": {"path": f"/mnt/raw/{entry}"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [ON_N1]}]}},
    }
    return {"metadata": {"name": volume_name(entry, "n1", "raw"), "annotations": annotations}, "spec": spec}


ON_N1 = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["n1"]}


def test_disks_that_are_static_volumes_are_made_drives_neither_by_all_nor_by_force(here: Bench):
    """Such disks may be blank, or not in use at this moment: a claim without a pod may have data on them."""
    listed, gone, free = ({**SDB, "name": name, "serial": name} for name in ("sdb", "sdx", "sdy"))
    unmounted = {**SDC, "fileSystemUUID": "0a0b0c0d-0000-4000-8000-000000000001"}
    here.devices("n1", listed, {**gone, "wwn": "naa.5"}, unmounted, free)
    here.create(NAMESPACE, {"metadata": {"name": "static"}})
    volumes = [
        local_volume("disk1", storage_class="raw", identity="serial:Fast 1:sdb"),
        local_volume("disk2", storage_class="raw", identity="fs:0a0b0c0d000040008000000000000001"),
    ]
    here.create(
        PROVISIONER_STATUS,
        new_object("ProvisionerStatus", "n1", ProvisionerSpec(node_name="n1"), namespace="static"),
        localVolumes=msgspec.to_builtins(volumes),
    )
    here.create(PERSISTENT_VOLUME, static_volume("disk3", **{DISK_IDENTITY: "wwn:naa.5"}))

    shown = here.typed("drives", "discover", "-o", "json").json
    usable = [each["name"] for each in shown if each["isUsable"]]
    refused = [here.typed("drives", "init", f"n1/{name}", "--force", "--yes") for name in ("sdb", "sdx", "sdc")]
    with here.node("n1", formatted) as requests:
        here.typed("drives", "init", "--all", "--yes")

    assert usable == ["sdy"]
    assert [each.code for each in refused] == [1, 1, 1]
    assert all("cannot become a drive: it is the static volume local-pv-" in each.err for each in refused)
    assert [each["name"] for each in requests[0]["spec"]["devices"]] == ["sdy"]


LEFT_BEHIND = {
    **DRIVE_DEVICE,
    "fileSystem": "xfs",
    "fingerprint": "f-sdd",
    "unusable": [f"it is the drive {D1}, which is not this node's: 'orlop drives adopt' takes it over"],
}


def test_the_disk_of_a_drive_that_was_removed_becomes_a_drive_again_by_force_alone(here: Bench):
    here.devices("n1", LEFT_BEHIND)
    assert here.typed("drives", "init", "n1/sdd", "--yes").code == 1
    with here.node("n1", formatted) as requests:
        assert here.typed("drives", "init", "n1/sdd", "--yes", "--force").code == 0
    assert requests[0]["spec"]["devices"] == [{"name": "sdd", "fingerprint": "f-sdd", "force": True}]


@pytest.mark.parametrize("more", [{"mountPoints": ["/drives/d"]}, {"unusable": ["it is read-only"]}])
def test_force_overwrites_no_drive_that_is_mounted_or_cannot_be_formatted(here: Bench, more: Object):
    here.devices("n1", LEFT_BEHIND | more)
    assert here.typed("drives", "init", "n1/sdd", "--yes", "--force").code == 1


def test_force_overwrites_no_drive_that_an_object_describes_though_its_node_is_another(here: Bench):
    here.devices("n1", LEFT_BEHIND)
    here.drive(1, node="n2")
    refused = here.typed("drives", "init", "n1/sdd", "--yes", "--force")
    assert (refused.code, here.all(DRIVE_REQUEST)) == (1, [])
    assert f"it is the drive {D1}" in refused.err


def test_all_takes_the_devices_that_hold_nothing(here: Bench):
    here.devices("n1", SDA, SDB, SDC, DRIVE_DEVICE)
    with here.node("n1", formatted) as requests:
        assert here.typed("drives", "init", "--all", "--yes", "--fs", "ext4").code == 0
    (request,) = requests
    assert ([each["name"] for each in request["spec"]["devices"]], request["spec"]["fileSystem"]) == (["sdb"], "ext4")


def test_a_node_that_does_not_begin_in_time_loses_the_request(here: Bench):
    here.devices("n1", SDB)
    ended = here.typed("drives", "init", "n1/sdb", "--yes", "--timeout", "5s")
    assert ended.code == 1
    assert "the node did not begin in time, and the request was withdrawn" in ended.err
    assert here.all(DRIVE_REQUEST) == []


def test_a_node_that_has_begun_keeps_the_request(here: Bench):
    here.devices("n1", SDB)
    with here.node("n1", lambda _spec: {"state": "Pending"}):
        ended = here.typed("drives", "init", "n1/sdb", "--yes", "--timeout", "5s")
    assert ended.code == 1
    assert "the node has not finished in time, and continues" in ended.err
    assert len(here.all(DRIVE_REQUEST)) == 1


def test_an_interrupted_command_withdraws_its_request(here: Bench):
    spec = DriveRequestSpec(node_name="n1", adopt=True)

    async def interrupted(client: KubeClient) -> int:
        command = asyncio.create_task(DriveRequests(client, here.clock, Random(1)).carry_out([spec], 60))
        while not (made := (await client.list(DRIVE_REQUEST)).items):
            await asyncio.sleep(0)
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        return len(made)

    assert here.do(interrupted) == 1
    assert here.all(DRIVE_REQUEST) == []


def test_results_come_as_the_node_writes_them_and_each_once(here: Bench):
    here.devices("n1", SDB, {**SDB, "name": "sde", "fingerprint": "e"})

    async def one_after_the_other(spec: DriveRequestSpec) -> Object:
        results = formatted(spec)["results"]
        (request,) = (await here.client.list(DRIVE_REQUEST)).items
        name = ObjectName(None, request["metadata"]["name"])
        partial = MergePatch({"status": {"state": "Pending", "results": results[:1]}})
        await here.client.patch(DRIVE_REQUEST, name, partial, subresource="status")
        await here.clock.sleep(1)
        return {"state": "Done", "results": results}

    with here.node("n1", one_after_the_other):
        done = here.typed("drives", "init", "n1/sdb", "n1/sde", "--yes")
    assert done.code == 0
    assert [line.split(": ")[1] for line in done.out.splitlines()] == ["sdb", "sde"]


def test_a_folder_becomes_a_drive_of_the_only_node_in_whole_mebibytes(here: Bench):
    here.devices("n1")
    with here.node("n1", lambda _spec: {"state": "Done", "results": [{"target": "/srv/a", "drive": D1}]}) as requests:
        done = here.typed("drives", "add-folder", "/srv//a/", "--capacity", "1500M")
    assert done.code == 0
    assert requests[0]["spec"]["folder"] == {"path": "/srv/a", "capacityBytes": 1_500_000_000 >> 20 << 20}


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["srv/a", "--capacity", "1Gi"], 2, "is not an absolute path"),
        (["/srv/../etc", "--capacity", "1Gi"], 2, "has '..' in it"),
        (["/srv/a", "--capacity", "much"], 2, "not a quantity"),
        (["/srv/a", "--capacity", "1Ki"], 2, "is not a capacity for a drive"),
        (["/srv/a", "--capacity", "1Gi", "--node", "n9"], 3, "The node n9 has not reported its devices"),
        (["/srv/a", "--capacity", "1Gi"], 2, "There are several nodes: choose one with --node (n1, n2)."),
    ],
)
def test_a_folder_that_cannot_be_a_drive_is_refused_before_a_request(
    here: Bench, words: list[str], code: int, why: str
):
    here.devices("n1")
    here.devices("n2")
    refused = here.typed("drives", "add-folder", *words)
    assert refused.code == code
    assert why in " ".join(refused.err.split())
    assert here.all(DRIVE_REQUEST) == []


def test_whoever_may_not_write_is_told_so_by_the_server(here: Bench):
    here.drive(1)
    refused = here.typed("drives", "list", user=User("tenant", ("system:authenticated",)))
    assert refused.code == 1
    assert "forbidden" in refused.err


def test_help_names_every_command_and_the_exit_codes():
    shown = run_here("drives", "--help").stdout
    for name in ("list", "info", "discover", "init", "add-folder", "cordon", "uncordon", "label", "tier", "remove"):
        assert f"  {name} " in shown
    assert "3 no such object" in " ".join(shown.split())
