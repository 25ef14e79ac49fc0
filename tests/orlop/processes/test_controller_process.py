"""`orlop controller` as the manifests run it: with its roles and no other right, led by one, killed at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from orlop.binding import claim_state_rules as state
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, LEASE, NODE, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.processes.controller import lease_of
from orlop.records.drive import DRIVE
from orlop.records.volume import VOLUME
from orlop.records.volume_context import DRIVE_KEY, TOPOLOGY_NODE
from support.api.api_objects import csi_node, named
from support.attaching.attacher_places import Place, answer_of, place
from support.drives.drive_facts import GIB
from support.drives.drive_worlds import allocated, drive_id, drive_object, drive_status
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.limited_kubeconfigs import NAMESPACE, account_token, limited_kubeconfig
from support.processes.orlop_process import Running, run, running
from support.provisioning.provisioner_places import delete_claim, events_of, release_unless_a_binder_does, volume
from support.waiting import eventually_answered

DRIVES = REPOSITORY / "deploy" / "manifests" / "drives"
NUMBER = 19


@asynccontextmanager
async def drives_place(folder: Path, api: Path) -> AsyncIterator[tuple[Place, Path]]:
    """A cluster with the manifests, a node with one drive, and the kubeconfig of the controller's account."""
    async with place(folder, api) as the:
        kubectl = Kubectl(the.kubeconfig, the.folder / "home")
        kubectl.ok("apply", "-k", str(DRIVES))
        token = account_token(kubectl, "orlop-controller")
        kubeconfig = limited_kubeconfig(kubectl, the.folder, f"--token={token}")
        node = named(the.named("n"))
        node["metadata"]["labels"] = {TOPOLOGY_NODE: the.named("n")}
        await the.client.create(NODE, node)
        registered = {"name": the.driver_name, "nodeID": the.named("n"), "topologyKeys": [TOPOLOGY_NODE]}
        await the.client.create(CSI_NODE, csi_node(the.named("n"), registered))
        await eventually_answered(lambda: make_drive(the))
        body = {"metadata": {"name": the.named("drives")}, "provisioner": the.driver_name}
        await the.client.create(STORAGE_CLASS, body | {"volumeBindingMode": "WaitForFirstConsumer"})
        yield the, kubeconfig
        await the.client.delete(NODE, ObjectName(None, the.named("n")))
        await the.client.delete(DRIVE, ObjectName(None, drive_id(NUMBER)))


async def make_drive(the: Place) -> bool:
    name = ObjectName(None, drive_id(NUMBER))
    try:
        await the.client.create(DRIVE, drive_object(NUMBER, the.named("n")))
        await the.client.patch(DRIVE, name, MergePatch({"status": drive_status()}), subresource="status")
    except ApiError:  # the definition was applied just now
        return False
    return True


async def make_claim(the: Place, size: str = "1Gi") -> str:
    """Create a claim whose pod was scheduled to the node; return the name of its volume."""
    marks = {state.STORAGE_PROVISIONER: the.driver_name, state.SELECTED_NODE: the.named("n")}
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
        "storageClassName": the.named("drives"),
    }
    metadata = {"namespace": "default", "generateName": the.named("data-"), "annotations": marks}
    claim = await the.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})
    return f"pvc-{claim['metadata']['uid']}"


def controller(the: Place, kubeconfig: Path, *more: str, socket: str = "c.sock") -> AbstractContextManager[Running]:
    flags = (f"--csi-address={the.folder}/{socket}", f"--kubeconfig={kubeconfig}", f"--drivername={the.driver_name}")
    return running(the.folder, "controller", *flags, "--retry-interval-start=100ms", *more)


async def stored(the: Place, name: str) -> Any:
    with suppress(NotFound):
        return await the.client.get(VOLUME, ObjectName(None, name))
    return None


async def allocations(the: Place) -> dict[str, int]:
    return allocated(await the.client.get(DRIVE, ObjectName(None, drive_id(NUMBER))))


async def erase_as_the_node_does(the: Place, name: str) -> bool:
    """Report what was deleted as erased; return whether it is gone."""
    found = await stored(the, name)
    if found is not None and found["spec"].get("erase"):
        patch = MergePatch({"status": {"phase": "Erased"}})
        with suppress(NotFound):
            await the.client.patch(VOLUME, ObjectName(None, name), patch, subresource="status")
    return found is None


async def test_a_claim_becomes_a_volume_and_its_space_returns_with_the_rights_of_the_manifests(
    short_folder: Path, api_kubeconfig: Path
):
    async with drives_place(short_folder, api_kubeconfig) as (the, kubeconfig):
        with controller(the, kubeconfig, "--leader-election", "--http-endpoint=127.0.0.1:0") as process:
            name = await make_claim(the)
            found = await eventually_answered(lambda: volume(the, name))
            reserved, of_claim = await allocations(the), (await stored(the, name))["spec"]["claim"]
            too_large = await make_claim(the, "11Gi")
            why = await eventually_answered(lambda: failure_of(the, too_large))
            metrics = answer_of(process, "/metrics")[1]
            ready = answer_of(process, "/readyz")
            called = run("csi", "Controller.ListVolumes", "--endpoint", f"unix://{the.folder}/c.sock")
            for each in (name, too_large):
                await delete_claim(the, each)

            async def is_gone() -> bool:
                await release_unless_a_binder_does(the, name)
                return await erase_as_the_node_does(the, name) and await volume(the, name) is None

            await eventually_answered(is_gone)
            process.signal(signal.SIGTERM)
            assert await process.exit_code() == 0

        lease = await the.client.get(LEASE, ObjectName(NAMESPACE, lease_of(the.driver_name)))
        assert await allocations(the) == {}
    source, affinity = found["spec"]["csi"], found["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    assert source["volumeAttributes"][DRIVE_KEY] == drive_id(NUMBER)
    assert affinity[0]["matchExpressions"] == [{"key": TOPOLOGY_NODE, "operator": "In", "values": [the.named("n")]}]
    assert reserved == {name: GIB}
    assert of_claim["namespace"] == "default"
    assert "11Gi is more than any drive has: the largest has 10Gi" in why
    assert (
        f'orlop_drive_allocated_bytes{{drive="{drive_id(NUMBER)}",node="{the.named("n")}"}} 1.073741824e+09' in metrics
    )
    assert ready[0] == 200
    assert name in called.stdout, called.stderr
    assert not lease["spec"]["holderIdentity"]
    assert "forbidden" not in process.logged().lower()
    assert "Traceback" not in process.logged()


async def failure_of(the: Place, name: str) -> str:
    return (await events_of(the, name)).get("ProvisioningFailed", "")


async def test_the_leader_is_killed_and_the_other_one_finishes(short_folder: Path, api_kubeconfig: Path):
    fast = (
        "--leader-election",
        "--leader-election-lease-duration=3s",
        "--leader-election-renew-deadline=2s",
        "--leader-election-retry-period=500ms",
    )
    async with drives_place(short_folder, api_kubeconfig) as (the, kubeconfig):
        with controller(the, kubeconfig, *fast) as first:
            await first.says("became leader")
            with controller(the, kubeconfig, *fast, socket="d.sock") as second:
                await second.says("CSI server listening")
                waiting = run("csi", "Controller.ListVolumes", "--endpoint", f"unix://{the.folder}/d.sock")
                first.signal(signal.SIGKILL)
                name = await make_claim(the)
                await eventually_answered(lambda: volume(the, name))

                assert "does not lead" in waiting.stderr
                assert await allocations(the) == {name: GIB}
                await delete_claim(the, name)

                async def is_gone() -> bool:
                    await release_unless_a_binder_does(the, name)
                    return await erase_as_the_node_does(the, name)

                await eventually_answered(is_gone)


def test_a_socket_in_no_folder_is_refused_with_a_sentence():
    refused = run("controller", "--csi-address=/no/such/folder/c.sock")

    assert refused.returncode == 2
    assert "there is no folder /no/such/folder" in refused.stderr


def test_a_controller_loads_nothing_of_static_volumes_before_it_serves_some():
    imported = "import sys, orlop.processes.controller; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", imported], check=True, capture_output=True, text=True).stdout.split()

    assert [name for name in loaded if name.startswith("orlop.static_pv") or name == "yaml"] == []
