"""Run the work of a verb with a connection to an API server; print failures on stderr, and exit with their code.

The server is found as kubectl finds it; without a kubeconfig, the server of the only running `orlop up` is used. If
~/.kube/config leads to another server while an `orlop up` runs, the user has to choose.
Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, NoReturn, Protocol, TypeVar

import click

from orlop.admin.refusals import ChangeRefused, UnknownObject, WrongUse
from orlop.admin.up_state import (
    DEFAULT_STATE,
    SeveralRun,
    UpState,
    is_stopped,
    running_ups,
    start_command,
    state_of,
    why_unused,
)
from orlop.cli.options import FAILED, INTERRUPTED, VerbFunction, with_options
from orlop.cli.output import harmless
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, Patience
from orlop.kube.config.cluster_access import ClusterAccess
from orlop.kube.config.kubeconfig import Kubeconfig, KubeconfigError
from orlop.kube.config.kubeconfig_files import NoKubeconfig
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import InvalidPath
from orlop.processes.kube_wiring import run_plugin

WRONG_USE: Final = 2
NOT_FOUND: Final = 3
HELP_ON_CODES: Final = (
    "Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted. With --dry-run, nothing "
    "is changed."
)
PATIENCE: Final = Patience(10.0, attempts=2)
"""Shorter than a controller's: a person waits for the output."""
CHOICE: Final = "orlop.server"

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """Which API server the user chose."""

    kubeconfig: str = ""
    context: str = ""
    state: str = ""


@dataclass(frozen=True, slots=True)
class ConnectedCluster:
    """A connection to an API server; `namespace` is that of names without one."""

    client: KubeClient
    namespace: str
    now: datetime
    clock: Clock
    random: Random


Work = Callable[[ConnectedCluster], Awaitable[Result]]


class RunInCluster(Protocol):
    """Runs work to its end, in an event loop. Tests pass their own as the context's object."""

    def __call__(self, choice: ServerChoice, work: Work[Result]) -> Result: ...


def server_options(function: VerbFunction) -> VerbFunction:
    """Add the options that choose the API server. `in_cluster` reads them."""
    options = (
        click.option(
            "--kubeconfig",
            default="",
            metavar="FILE",
            expose_value=False,
            callback=_note,
            help="Kubeconfig file; default: the file that kubectl would use, else that of the only `orlop up` that "
            "runs. If both exist, name one.",
        ),
        click.option("--context", default="", expose_value=False, callback=_note, help="Context of the kubeconfig."),
        click.option(
            "--state",
            default="",
            metavar="DIR",
            expose_value=False,
            callback=_note,
            help="Folder of an `orlop up`, instead of --kubeconfig.",
        ),
    )
    return with_options(function, *options)


def _note(context: click.Context, parameter: click.Parameter, value: str) -> None:
    if value:
        context.meta[CHOICE] = replace(_choice(context), **{str(parameter.name): value})


def _choice(context: click.Context) -> ServerChoice:
    chosen: ServerChoice = context.meta.get(CHOICE, ServerChoice())
    return chosen


def in_cluster(work: Work[Result]) -> Result:
    """Run `work` and return its result. A failure prints a sentence and ends the process with its exit code."""
    context = click.get_current_context()
    choice, runner = _choice(context), context.obj or run_connected
    if choice.state and (choice.kubeconfig or choice.context):
        other = "--kubeconfig" if choice.kubeconfig else "--context"
        raise click.UsageError(f"--state and {other} exclude each other: use one of them.")
    if choice.state and (why := why_unused(UpState(Path(choice.state)))):
        end(FAILED, why)
    if choice.state:
        choice = ServerChoice(kubeconfig=str(UpState(Path(choice.state)).kubeconfig))
    try:
        result: Result = runner(choice, work)
    except UnknownObject as error:
        end(NOT_FOUND, str(error))
    except (InvalidPath, SeveralRun, WrongUse) as error:
        end(WRONG_USE, str(error))
    except ChangeRefused as error:
        end(FAILED, str(error))
    except (ApiError, KubeconfigError) as error:
        end(FAILED, _failure(error, choice.kubeconfig))
    except KeyboardInterrupt:
        end(INTERRUPTED, "interrupted")
    return result


def end(code: int, why: str) -> NoReturn:
    """Print why on stderr, and exit."""
    click.echo(harmless(why), err=True)
    sys.exit(code)


def _failure(error: Exception, kubeconfig: str) -> str:
    state = state_of(Path(kubeconfig or os.environ.get("KUBECONFIG", "")))
    if state is not None and is_stopped(state):
        return f"Nothing runs in {state.folder}: start it with `{start_command(state)}`."
    if not isinstance(error, KubeconfigError):
        return str(error)
    default = UpState(DEFAULT_STATE)
    if not kubeconfig and isinstance(error, NoKubeconfig) and is_stopped(default):
        return f"Nothing runs in {default.folder}: start it with `{start_command(default)}`. For a cluster, {error}."
    return f"{error}. For an `orlop up`, name its folder: --state DIR"


def run_connected(choice: ServerChoice, work: Work[Result]) -> Result:
    """Connect to the chosen API server, and run the work."""

    async def connected_work() -> Result:
        async with _connected(choice) as cluster:
            return await work(cluster)

    return asyncio.run(connected_work())


@asynccontextmanager
async def _connected(choice: ServerChoice) -> AsyncIterator[ConnectedCluster]:
    clock, random = SystemClock(), SystemRandom()
    access = _access(Kubeconfig(os.environ, clock=clock, run=run_plugin), choice)
    options: dict[str, Any] = {"clock": clock, "random": random, "log": silent_log(), "patience": PATIENCE}
    client = KubeClient(HttpTransport(access), name="orlop", **options)
    try:
        yield ConnectedCluster(client, access.namespace, clock.now(), clock, random)
    finally:
        await client.close()


def _access(files: Kubeconfig, choice: ServerChoice) -> ClusterAccess:
    """Return the access that kubectl would use. If there is no kubeconfig, use the only `orlop up` that runs.

    Raises WrongUse if ~/.kube/config leads to another server than a running `orlop up`, and the user named neither.
    """
    is_named = choice.kubeconfig or choice.context or os.environ.get("KUBECONFIG")
    running = [] if is_named else running_ups()
    try:
        access = files.find(choice.kubeconfig, choice.context)
    except NoKubeconfig:
        if not running:
            raise
        if len(running) > 1:
            raise SeveralRun(running) from None
        return files.find(str(running[0].kubeconfig))
    # A pod has no such file: it uses its own cluster, even if it can read the record of running `orlop up`s.
    if running and files.home_file.exists() and access.server not in _servers(files, running):
        folders = ", ".join(str(state.folder) for state in running)
        raise WrongUse(
            f"Two clusters could be meant: that of {files.home_file}, and the `orlop up` in {folders}. Choose with "
            "--state DIR, --kubeconfig FILE or $KUBECONFIG."
        )
    return access


def _servers(files: Kubeconfig, running: list[UpState]) -> set[str]:
    servers = set()
    for state in running:
        with suppress(KubeconfigError):
            servers.add(files.find(str(state.kubeconfig)).server)
    return servers
