"""`orlop attacher` with the rights that deploy/ gives it, and not one more."""

from __future__ import annotations

import base64
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from orlop.kube.kinds import CSI_NODE, LEASE, NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import NODE_IDS_ANNOTATION
from support.api.api_objects import attachment, csi_node, named, volume
from support.attaching.attacher_places import Place, place
from support.places import REPOSITORY
from support.processes.kubectl_commands import Kubectl
from support.processes.limited_kubeconfigs import NAMESPACE, account_token, also_permitted, limited_kubeconfig
from support.processes.orlop_process import run_here
from support.waiting import eventually_answered

MANIFESTS = REPOSITORY / "deploy" / "manifests"
RIGHTS = MANIFESTS / "attacher" / "rbac.yaml"
OF_SECRETS = MANIFESTS / "optional" / "attacher-secrets-rbac.yaml"
OF_NODES = MANIFESTS / "optional" / "attacher-node-id-rbac.yaml"


def kubectl_of(the: Place) -> Kubectl:
    return Kubectl(the.kubeconfig, the.folder / "home")


def token_of_the_role(the: Place) -> str:
    kubectl = kubectl_of(the)
    kubectl.run("create", "namespace", NAMESPACE)  # on a server of somebody else's it may be there
    kubectl.ok("apply", "-f", str(RIGHTS))
    return account_token(kubectl, "orlop-attacher")


def kubeconfig_with(the: Place, *credentials: str) -> Path:
    return limited_kubeconfig(kubectl_of(the), the.folder, *credentials)


async def make_attachment(the: Place, **csi: Any) -> None:
    source = {"driver": the.driver_name, "volumeHandle": "h1", **csi}
    await the.client.create(PERSISTENT_VOLUME, volume(the.named("pv1"), csi=source))
    of_it = {"persistentVolumeName": the.named("pv1")}
    wanted = attachment(the.named("va1"), attacher=the.driver_name, nodeName=the.named("n"), source=of_it)
    await the.client.create(VOLUME_ATTACHMENT, wanted)


@asynccontextmanager
async def secret(the: Place) -> AsyncIterator[dict[str, str]]:
    """How a volume names it."""
    name = the.named("secret")
    hidden = base64.b64encode(b"swordfish").decode()
    await the.client.create(SECRET, {"metadata": {"name": name, "namespace": NAMESPACE}, "data": {"key": hidden}})
    yield {"name": name, "namespace": NAMESPACE}
    await the.client.delete(SECRET, ObjectName(NAMESPACE, name))


async def test_it_needs_no_right_that_its_role_does_not_give(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        kubeconfig = kubeconfig_with(the, f"--token={token_of_the_role(the)}")
        await the.client.create(CSI_NODE, csi_node(the.named("n"), {"name": the.driver_name, "nodeID": "node-1"}))
        full = {"times": 1, "error": {"code": "RESOURCE_EXHAUSTED", "message": "no slot"}}
        script = {"ControllerPublishVolume": [full]}
        async with secret(the) as reference:
            await make_attachment(the, controllerPublishSecretRef=reference)
            flags = ("--leader-election", f"--kubeconfig={kubeconfig}")
            with (
                also_permitted(kubectl_of(the), OF_SECRETS),
                the.driver(script=script),
                the.attacher(*flags) as attacher,
            ):
                await eventually_answered(lambda: the.has_event("FailedAttachVolume", "no slot"))
                await eventually_answered(the.is_attached)
                await the.delete()
                await eventually_answered(the.is_gone)
                attacher.signal(signal.SIGTERM)
                assert await attacher.exit_code() == 0
        calls = [json.loads(line) for line in the.record().read_text().splitlines()]
        assert [call["method"] for call in calls if "secrets" in call["request"]] == [
            *("ControllerPublishVolume", "ControllerPublishVolume", "ControllerUnpublishVolume")
        ]
        lease = await the.client.get(LEASE, ObjectName(NAMESPACE, the.lease.name))
        assert not lease["spec"]["holderIdentity"]
        assert "forbidden" not in attacher.logged().lower()


async def test_what_the_driver_calls_a_node_is_read_from_the_node_only_with_the_right_that_is_optional(
    short_folder: Path, api_kubeconfig: Path
):
    async with place(short_folder, api_kubeconfig) as the:
        kubeconfig = kubeconfig_with(the, f"--token={token_of_the_role(the)}")
        ids = {NODE_IDS_ANNOTATION: json.dumps({the.driver_name: "node-1"})}
        node = named(the.named("n"))
        node["metadata"]["annotations"] = ids
        await the.client.create(NODE, node)
        await make_attachment(the)
        with the.driver(), the.attacher(f"--kubeconfig={kubeconfig}"):
            told = await eventually_answered(lambda: the.error("attachError"))
            assert "has no id for the node" in told["message"]
            with also_permitted(kubectl_of(the), OF_NODES):
                await eventually_answered(the.is_attached)
            await the.delete()
            await eventually_answered(the.is_gone)
        await the.client.delete(NODE, ObjectName(None, the.named("n")))


async def test_a_credential_plugin_is_run_as_kubectl_runs_it(short_folder: Path, api_kubeconfig: Path):
    async with place(short_folder, api_kubeconfig) as the:
        await the.make()
        version = "client.authentication.k8s.io/v1"
        status = {"token": token_of_the_role(the)}
        answer = the.folder / "answer"
        answer.write_text(json.dumps({"kind": "ExecCredential", "apiVersion": version, "status": status}))
        plugin = (f"--exec-api-version={version}", "--exec-command=cat", f"--exec-arg={answer}")
        kubeconfig = kubeconfig_with(the, *plugin, "--exec-interactive-mode=Never")
        told = run_here("explain", "volumeattachment", the.named("va1"), f"--kubeconfig={kubeconfig}")
        assert (told.returncode, told.stderr) == (0, "")
        assert "adds its finalizer to the PersistentVolume" in told.stdout
        with the.driver(), the.attacher(f"--kubeconfig={kubeconfig}"):
            await eventually_answered(the.is_attached)
