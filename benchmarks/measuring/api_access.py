"""A client for the API server of a benchmark, and the embedded API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Final

from measuring.processes import served
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import KubeClient, Patience
from orlop.kube.config.kubeconfig import Kubeconfig
from orlop.kube.http.http_transport import HttpTransport

PATIENCE_SECONDS: Final = 120.0
"""What takes longer is an error and no figure. Some servers take long to delete 1,000 objects."""


@asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    access = Kubeconfig({}, clock=SystemClock(), run=_no_programs).find(str(kubeconfig))
    client = KubeClient(
        HttpTransport(access),
        clock=SystemClock(),
        random=Random(1),  # noqa: S311 - no secret
        log=silent_log(),
        name="bench",
        patience=Patience(PATIENCE_SECONDS),
    )
    try:
        yield client
    finally:
        await client.close()


async def _no_programs(*_: object) -> tuple[int, bytes, bytes]:
    raise OSError("no programs are run here")


@contextmanager
def api_server(kubeconfig: str, folder: Path) -> Iterator[Path]:
    """Yield `kubeconfig`, or without one the kubeconfig of an embedded API server, a process of its own."""
    if kubeconfig:
        yield Path(kubeconfig)
        return
    state = folder / "api"
    with served(["apiserver", f"--state={state}"], state / "kubeconfig"):
        yield state / "kubeconfig"
