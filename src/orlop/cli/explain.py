"""`orlop explain …`: what an object waits for, since when, what was tried, and what comes next.

It only reads. Control characters in what it quotes are escaped.
Exit codes: 0 explained, 1 failed, 2 wrong use, 3 no such object.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from typing import Any, Final, NoReturn

import click

from orlop.admin.explain_attachment import AttachmentSeen, Explanation, Unreadable, explain
from orlop.admin.up_state import (
    DEFAULT_STATE,
    SeveralRun,
    UpState,
    is_stopped,
    is_up_state,
    running_ups,
    start_command,
    state_of,
)
from orlop.cli.output import harmless, show
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import ApiError, Forbidden, NotFound
from orlop.kube.client import KubeClient, Patience
from orlop.kube.config.cluster_access import ClusterAccess
from orlop.kube.config.kubeconfig import Kubeconfig, KubeconfigError
from orlop.kube.config.kubeconfig_files import NoKubeconfig
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import CSI_DRIVER, CSI_NODE, NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, InvalidPath, Kind
from orlop.kube.objects import ObjectName
from orlop.processes.kube_wiring import run_plugin
from orlop.sidecars.attacher.attach_rules import attacher_of, id_in_annotation, id_in_csi_node, node_name_of
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_FOUND: Final = 3
PRINTED: Final = "volumeattachment.storage.k8s.io/"
"""What `kubectl get -o name` puts before a name."""
OTHER_NAMES: Final = {"volumeattachments": "volumeattachment", "va": "volumeattachment"}
HELP_ON_CODES: Final = "Exit codes: 0 explained, 1 failed, 2 wrong use, 3 no such object."
PATIENCE: Final = Patience(10.0, attempts=2)
"""Shorter than a controller's: a person waits for the output."""


class _Kinds(click.Group):
    """Kinds can also be written as kubectl accepts them."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return super().get_command(context, OTHER_NAMES.get(name, name))


@click.group(
    "orlop explain",
    cls=_Kinds,
    epilog=HELP_ON_CODES,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """Explain what an object waits for, since when, what was tried, and what comes next."""


@command.command(
    "volumeattachment",
    short_help="Explain a VolumeAttachment; also `volumeattachments` and `va`.",
    epilog=HELP_ON_CODES,
)
@click.argument("name")
@click.option(
    "--kubeconfig",
    default="",
    metavar="FILE",
    help="Kubeconfig file; default: the file that kubectl would use, else that of the only `orlop up` that runs.",
)
@click.option("--state", default="", metavar="DIR", help="Folder of an `orlop up`, in place of --kubeconfig.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="Output format.")
def volume_attachment(name: str, kubeconfig: str, state: str, output: str) -> None:
    """Explain the VolumeAttachment NAME, as `kubectl get volumeattachments` shows it, with or without `-o name`."""
    if state and kubeconfig:
        raise click.UsageError("--state and --kubeconfig exclude each other: use one of them.")
    name = name.removeprefix(PRINTED)
    kubeconfig = str(UpState(Path(state)).kubeconfig) if state else kubeconfig
    try:
        explanation = asyncio.run(_explanation(name, kubeconfig))
    except NotFound:
        _end(NOT_FOUND, f"There is no VolumeAttachment {name}.")
    except InvalidPath as error:
        _end(WRONG_USE, str(error))
    except (ApiError, KubeconfigError) as error:
        _end(FAILED, _failure(error, kubeconfig))
    if output == "text":
        click.echo(
            "\n".join(
                map(harmless, (explanation.what, explanation.state, *explanation.tried, f"Next: {explanation.next}"))
            )
        )
    else:
        show(asdict(explanation), output)


def _failure(error: Exception, kubeconfig: str) -> str:
    state = state_of(Path(kubeconfig or os.environ.get("KUBECONFIG", "")))
    if state is not None and is_stopped(state):
        return f"Nothing runs in {state.folder}: start it with `{start_command(state)}`."
    if not isinstance(error, KubeconfigError):
        return str(error)
    if is_up_state(UpState(DEFAULT_STATE)):
        return f"{error}. For the `orlop up` of this machine: --state {DEFAULT_STATE}"
    return f"{error}. For an `orlop up`, name its folder: --state DIR"


def _end(code: int, why: str) -> NoReturn:
    click.echo(harmless(why), err=True)
    sys.exit(code)


async def _explanation(name: str, kubeconfig: str) -> Explanation:
    clock = SystemClock()
    access = _access(Kubeconfig(os.environ, clock=clock, run=run_plugin), kubeconfig)
    client = KubeClient(
        HttpTransport(access),
        clock=clock,
        random=SystemRandom(),
        log=silent_log(),
        name="orlop",
        patience=PATIENCE,
    )
    try:
        attachment = await client.get(VOLUME_ATTACHMENT, ObjectName(None, name))
        return explain(await _Reader(client).seen(attachment), clock.now())
    finally:
        await client.close()


def _access(files: Kubeconfig, kubeconfig: str) -> ClusterAccess:
    """As kubectl finds it; where it finds nothing and nobody named a file, the only `orlop up` that runs is meant."""
    try:
        return files.find(kubeconfig)
    except NoKubeconfig as error:
        running = [] if kubeconfig or os.environ.get("KUBECONFIG") else running_ups()
        if not running:
            raise
        if len(running) > 1:
            raise KubeconfigError(f"{error}. {SeveralRun(running)}") from None
        return files.find(str(running[0].kubeconfig))


class _Reader:
    """Reads what a VolumeAttachment depends on, and remembers what may not be read."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._unreadable: list[Unreadable] = []

    async def seen(self, attachment: dict[str, Any]) -> AttachmentSeen:
        volume = await self._found(PERSISTENT_VOLUME, volume_name_of(attachment))
        node_id = await self._node_id(attachment)
        required = await self._attach_required(attacher_of(attachment))
        return AttachmentSeen(attachment, volume, node_id, tuple(self._unreadable), required)

    async def _node_id(self, attachment: dict[str, Any]) -> str | None:
        node, driver = node_name_of(attachment), attacher_of(attachment)
        known = id_in_csi_node(await self._found(CSI_NODE, node), driver)
        # The Node counts only if the CSINode does not have the driver's id.
        if known or self._unreadable_is(CSI_NODE):
            return known
        return id_in_annotation(await self._found(NODE, node) or {}, driver)

    async def _attach_required(self, driver: str) -> bool | None:
        spec = (await self._found(CSI_DRIVER, driver) or {}).get("spec")
        required = spec.get("attachRequired") if isinstance(spec, dict) else None
        return required if isinstance(required, bool) else None

    async def _found(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """Return the object; None if it does not exist, may not be read, or can have no such name."""
        if not name:
            return None
        try:
            return await self._client.get(kind, ObjectName(None, name))
        except Forbidden:
            self._unreadable.append(Unreadable(kind, name))
        except (NotFound, InvalidPath):
            pass
        return None

    def _unreadable_is(self, kind: Kind) -> bool:
        return any(each.kind == kind for each in self._unreadable)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name="orlop explain")  # ends the process with its exit code
