"""A process's client of the API server: built from a kubeconfig or the pod's own credentials, closed in the end.

Imported only by a process that needs one: TLS and the Kubernetes kinds cost memory.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from orlop import __version__
from orlop.foundation.runtime import Runtime
from orlop.kube.client import KubeClient
from orlop.kube.config.cluster_access import ClusterAccess
from orlop.kube.config.credentials import PLUGIN_SECONDS
from orlop.kube.config.kubeconfig import Kubeconfig, KubeconfigError
from orlop.kube.http.http_messages import Transport
from orlop.kube.http.http_transport import HttpTransport, LimitedTransport
from orlop.processes.daemon import CannotGoOn


@dataclass(frozen=True, slots=True)
class RequestRate:
    """A limit of requests per second, and how many may exceed it at once."""

    per_second: float
    burst: int


@asynccontextmanager
async def client_of_cluster(kubeconfig: str, runtime: Runtime, *, name: str) -> AsyncIterator[KubeClient]:
    """Open a client. For an empty path, use the kubeconfig of the environment. `name` is our field manager."""
    async with kube_client(kube_access(kubeconfig, runtime), runtime, name=name) as client:
        yield client


def kube_access(kubeconfig: str, runtime: Runtime) -> ClusterAccess:
    try:
        access = Kubeconfig(os.environ, clock=runtime.clock, run=run_plugin).find(kubeconfig)
    except KubeconfigError as error:
        raise CannotGoOn(str(error)) from None
    runtime.log.info("using the API server", server=access.server, found_in=access.origin, version=__version__)
    return access


@asynccontextmanager
async def kube_client(
    access: ClusterAccess, runtime: Runtime, *, name: str, rate: RequestRate | None = None
) -> AsyncIterator[KubeClient]:
    transport: Transport = HttpTransport(access)
    if rate is not None:
        transport = LimitedTransport(transport, per_second=rate.per_second, burst=rate.burst, clock=runtime.clock)
    client = KubeClient(transport, clock=runtime.clock, random=runtime.random, log=runtime.log, name=name)
    try:
        yield client
    finally:
        await client.close()


async def run_plugin(argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
    """Run the credential plugin that a kubeconfig names, as kubectl does: the file's author may run programs."""
    from orlop.host.kernel.programs import ask_program  # noqa: PLC0415 - hardly any kubeconfig names one
    from orlop.host.threads import OwnThreads  # noqa: PLC0415 - as above

    return await OwnThreads()(lambda: ask_program(argv, env, stdin, PLUGIN_SECONDS))
