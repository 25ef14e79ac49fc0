"""A process's way to an API server: a client, made from a kubeconfig or the pod's own credentials, closed in the end.

Imported only by a process that was asked to speak to one: TLS and what knows Kubernetes are not free.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orlop import __version__
from orlop.kube.client import KubeClient
from orlop.kube.cluster_access import ClusterAccess
from orlop.kube.credentials import PLUGIN_SECONDS
from orlop.kube.http_messages import Transport
from orlop.kube.kubeconfig import Kubeconfig, KubeconfigError
from orlop.kube.request_rate import LimitedTransport
from orlop.kube.transport import HttpTransport
from orlop.processes.daemon import CannotGoOn, Surroundings


@dataclass(frozen=True, slots=True)
class RequestRate:
    """At most so many requests in a second, and so many at once."""

    per_second: float
    burst: int


@asynccontextmanager
async def kube_side(kubeconfig: str, given: Surroundings, *, name: str) -> AsyncIterator[KubeClient]:
    """An empty path leaves it to the environment; `name` is told as the field manager of our writes."""
    async with kube_client(kube_access(kubeconfig, given), given, name=name) as client:
        yield client


def kube_access(kubeconfig: str, given: Surroundings) -> ClusterAccess:
    try:
        access = Kubeconfig(os.environ, clock=given.clock, run=run_plugin).find(kubeconfig)
    except KubeconfigError as error:
        raise CannotGoOn(str(error)) from None
    given.log.info("speaking to the API server", server=access.server, found_in=access.origin, version=__version__)
    return access


@asynccontextmanager
async def kube_client(
    access: ClusterAccess, given: Surroundings, *, name: str, rate: RequestRate | None = None
) -> AsyncIterator[KubeClient]:
    transport: Transport = HttpTransport(access)
    if rate is not None:
        transport = LimitedTransport(transport, per_second=rate.per_second, burst=rate.burst, clock=given.clock)
    client = KubeClient(transport, clock=given.clock, random=given.random, log=given.log, name=name)
    try:
        yield client
    finally:
        await client.close()


async def run_plugin(argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """A credential plugin that a kubeconfig names, as kubectl runs it: whoever wrote that file may run programs."""
    from orlop.host.programs import ask_program  # noqa: PLC0415 - hardly any kubeconfig names one

    return await asyncio.to_thread(ask_program, argv, env, stdin, PLUGIN_SECONDS)
