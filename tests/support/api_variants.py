"""The servers that the contract suite is run against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace

import pytest

from orlop.foundation.clock import SystemClock
from orlop.kube import kinds
from orlop.kube.cluster_access import ClusterAccess, FixedCredentials
from orlop.kube.http_messages import HttpAnswer, HttpRequest, HttpStream, Transport
from orlop.kube.kubeconfig import Kubeconfig
from orlop.kube.transport import HttpTransport
from support.api_under_test import Abilities, Actor, Bearer, Served

FOREIGN = "foreign"
EMBEDDED: list[str] = []


@contextmanager
def serve(variant: str, kubeconfig: str, folders: pytest.TempPathFactory) -> Iterator[Served]:
    if variant == FOREIGN:
        yield foreign(kubeconfig)


def foreign(kubeconfig: str) -> Served:
    access = Kubeconfig(os.environ, clock=SystemClock(), run=no_program).find(kubeconfig)
    empties = asyncio.run(has_controllers(access))
    return Listening(access, Abilities(empties_namespaces=empties, is_orlops=False, is_thrown_away=False))


async def no_program(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bytes, bytes]:
    raise AssertionError(f"the suite runs no credential plugins, so not {command}")


async def has_controllers(access: ClusterAccess) -> bool:
    """Where somebody makes each namespace its default service account, somebody also empties namespaces."""
    transport = HttpTransport(access)
    try:
        path = kinds.SERVICE_ACCOUNT.object_path("default", "default")
        return (await transport.exchange(HttpRequest("GET", path), 20.0)).status == 200
    finally:
        await transport.close()


@dataclass
class Listening:
    """A server on a socket."""

    access: ClusterAccess
    abilities: Abilities

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Transport]:
        transport = HttpTransport(self.access)
        try:
            yield transport
        finally:
            await transport.close()

    def speaking_for(self, admin: Transport, who: Actor | Bearer) -> Transport:
        match who:
            case Actor(user, groups):
                assert len(groups) <= 1, "headers are a mapping, so only one group can be sent"
                return WithHeaders(admin, {"impersonate-user": user} | {"impersonate-group": each for each in groups})
            case Bearer(""):
                return OneAtATime(replace(self.access, credentials=FixedCredentials()))
            case Bearer(token):
                return WithHeaders(admin, {"authorization": f"Bearer {token}"})


@dataclass
class WithHeaders:
    """The same connections, with something to say in each request."""

    inner: Transport
    headers: Mapping[str, str]

    def _with(self, request: HttpRequest) -> HttpRequest:
        return replace(request, headers={**request.headers, **self.headers})

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
        return await self.inner.exchange(self._with(request), within)

    def open(self, request: HttpRequest, within: float) -> AbstractAsyncContextManager[HttpStream]:
        return self.inner.open(self._with(request), within)

    async def renew_credentials(self) -> None:
        """These are all there are."""

    async def close(self) -> None:
        """The connections are another's."""


@dataclass
class OneAtATime:
    """A connection for each request, so that nobody has to close it."""

    access: ClusterAccess

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
        transport = HttpTransport(self.access)
        try:
            return await transport.exchange(request, within)
        finally:
            await transport.close()

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        transport = HttpTransport(self.access)
        try:
            async with transport.open(request, within) as stream:
                yield stream
        finally:
            await transport.close()

    async def renew_credentials(self) -> None:
        """There are none."""

    async def close(self) -> None:
        """Nothing is open."""
