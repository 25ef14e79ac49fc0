"""`orlop explain …`: in words, what an object waits for, since when, what was tried, and what comes next.

Reads and changes nothing; what it quotes cannot command a terminal.
Exit codes: 0 told, 1 it failed, 2 wrong use, 3 there is no such object.
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
from orlop.admin.up_state import DEFAULT_STATE, UpState, is_stopped, is_up_state, start_command, state_of
from orlop.cli.output import harmless, show
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import KubeClient, Patience
from orlop.kube.errors import ApiError, Forbidden, NotFound
from orlop.kube.kinds import CSI_DRIVER, CSI_NODE, NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, InvalidPath, Kind
from orlop.kube.kubeconfig import Kubeconfig, KubeconfigError
from orlop.kube.objects import ObjectName
from orlop.kube.transport import HttpTransport
from orlop.processes.kube_side import run_plugin
from orlop.sidecars.attacher.attach_rules import attacher_of, node_name_of
from orlop.sidecars.attacher.node_id_rules import id_in_annotation, id_in_csi_node
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

FAILED: Final = 1
WRONG_USE: Final = 2
NOT_FOUND: Final = 3
PRINTED: Final = "volumeattachment.storage.k8s.io/"
"""What `kubectl get -o name` puts before a name."""
OTHER_NAMES: Final = {"volumeattachments": "volumeattachment", "va": "volumeattachment"}
HELP_ON_CODES: Final = "Exit codes: 0 told, 1 it failed, 2 wrong use, 3 there is no such object."
PATIENCE: Final = Patience(10.0, attempts=2)
"""Somebody sits there and waits; a controller has more patience."""


class _Kinds(click.Group):
    """Each has the other names that people know it by, too."""

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return super().get_command(context, OTHER_NAMES.get(name, name))


@click.group(
    "orlop explain",
    cls=_Kinds,
    epilog=HELP_ON_CODES,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
)
def command() -> None:
    """What an object waits for, since when, what was tried, and what comes next."""


@command.command(
    "volumeattachment",
    short_help="Also `volumeattachments` and `va`: whether a volume is attached to a node.",
    epilog=HELP_ON_CODES,
)
@click.argument("name")
@click.option("--kubeconfig", default="", metavar="FILE", help="Not given: as kubectl finds it.")
@click.option("--state", default="", metavar="DIR", help="The folder of an `orlop up`: the same as its kubeconfig.")
@click.option("-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="How to print it.")
def volume_attachment(name: str, kubeconfig: str, state: str, output: str) -> None:
    """Explain the VolumeAttachment NAME, as `kubectl get volumeattachments` shows it, with or without `-o name`."""
    if state and kubeconfig:
        raise click.UsageError("--state and --kubeconfig say the same: give one of them.")
    name = name.removeprefix(PRINTED)
    kubeconfig = str(UpState(Path(state)).kubeconfig) if state else kubeconfig
    try:
        told = asyncio.run(_told(name, kubeconfig))
    except NotFound:
        _end(NOT_FOUND, f"There is no VolumeAttachment {name}.")
    except InvalidPath as error:
        _end(WRONG_USE, str(error))
    except (ApiError, KubeconfigError) as error:
        _end(FAILED, _failure(error, kubeconfig))
    if output == "text":
        click.echo("\n".join(map(harmless, (told.what, told.state, *told.tried, f"Next: {told.next}"))))
    else:
        show(asdict(told), output)


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


async def _told(name: str, kubeconfig: str) -> Explanation:
    clock = SystemClock()
    access = Kubeconfig(os.environ, clock=clock, run=run_plugin).find(kubeconfig)
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


class _Reader:
    """Reads what a VolumeAttachment depends on, and keeps in mind what may not be read."""

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
        if known or self._unreadable_is(CSI_NODE):  # what the Node says counts only where the CSINode says nothing
            return known
        return id_in_annotation(await self._found(NODE, node) or {}, driver)

    async def _attach_required(self, driver: str) -> bool | None:
        spec = (await self._found(CSI_DRIVER, driver) or {}).get("spec")
        required = spec.get("attachRequired") if isinstance(spec, dict) else None
        return required if isinstance(required, bool) else None

    async def _found(self, kind: Kind, name: str) -> dict[str, Any] | None:
        """None where it is not there, may not be read, or can have no such name."""
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
