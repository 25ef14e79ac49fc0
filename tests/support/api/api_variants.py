"""The servers that the contract suite is run against, and how each is reached."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import ClassVar

from onenode.apiserver.access.authentication import Authenticator
from onenode.apiserver.access.rbac_rules import AUTHENTICATED, Policy, User
from onenode.apiserver.access.reviews import Reviews
from onenode.apiserver.access.signed_tokens import TokenSigner, ensure_signer
from onenode.apiserver.answers.openapi import CustomSchema, OpenApi
from onenode.apiserver.edge.in_process_client import InProcessTransport
from onenode.apiserver.edge.server_paths import EndpointChecks, ServerPaths, version_document
from onenode.apiserver.requests.request_handler import ApiServer
from onenode.apiserver.requests.request_handler import ServerOptions as ServerServes
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.store import ObjectStore, memory_store
from onenode.apiserver.store.versions import DEFAULT_LIMITS
from onenode.apiserver.upkeep.namespace_furnishing import NamespaceFurnishing
from onenode.processes.api_wiring import VERSION
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Secret, silent_log
from orlop.kube import kinds
from orlop.kube.config.cluster_access import ClusterAccess, FixedCredentials, over_unix_socket
from orlop.kube.config.kubeconfig import Kubeconfig
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import BUILT_IN
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_under_test import Actor, Bearer, DriverCapabilities, Served
from support.processes.orlop_process import ORLOP, running
from support.waiting import eventually_there

FOREIGN, IN_PROCESS, UNIX_SOCKET, TLS = "foreign", "in process", "unix socket", "tls"
EMBEDDED = [IN_PROCESS, UNIX_SOCKET, TLS]
STATE = "state"
ADMIN = User("admin", ("system:masters", AUTHENTICATED))


@contextmanager
def serve(variant: str, kubeconfig: str, folder: Path) -> Iterator[Served]:
    """`folder` is where the embedded server that listens runs, or is to run, for all tests together."""
    if variant == FOREIGN:
        yield foreign(kubeconfig)
    elif variant == IN_PROCESS:
        yield InProcess(Schemas.load(), ensure_signer(folder / "tokens.key"))
    else:
        state = folder / STATE
        access = over_unix_socket(str(state / "api.sock")) if variant == UNIX_SOCKET else found(state / "kubeconfig")
        yield Listening(access, DriverCapabilities(authenticates=variant == TLS, waits_gladly=False))


@contextmanager
def embedded_process(folder: Path, program: Sequence[str] = ORLOP) -> Iterator[Path]:
    """The real program; its state folder, once everything is in it."""
    state = folder / STATE
    with running(folder, "apiserver", "--state", str(state), program=program) as process:
        eventually_there(lambda: (state / "kubeconfig").exists() or process.ended())
        assert not process.ended(), process.logged()
        yield state


def found(kubeconfig: Path | str) -> ClusterAccess:
    return Kubeconfig(os.environ, clock=SystemClock(), run=no_program).find(str(kubeconfig))


def foreign(kubeconfig: str) -> Served:
    access = found(kubeconfig)
    empties = asyncio.run(has_controllers(access))
    return Listening(access, DriverCapabilities(empties_namespaces=empties, is_orlops=False, is_thrown_away=False))


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
class InProcess:
    """A server of its own for each test, on virtual time."""

    schemas: Schemas
    signer: TokenSigner
    capabilities: DriverCapabilities = field(
        default_factory=lambda: DriverCapabilities(authenticates=False, listens=False)
    )
    server: ApiServer | None = None
    store: ObjectStore | None = None

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Transport]:
        async with AsyncExitStack() as stack:
            self.store = await stack.enter_async_context(memory_store(DEFAULT_LIMITS))
            self.server = self._server(self.store)
            await stack.enter_async_context(self.server.running())
            furnishing = NamespaceFurnishing(
                self.server, self.store, "the CA", clock=VirtualClock(), random=SystemRandom(), log=silent_log()
            )
            await stack.enter_async_context(furnishing.running())
            yield InProcessTransport(self.server, ADMIN)

    def _server(self, store: ObjectStore) -> ApiServer:
        clock, random = VirtualClock(datetime.now(UTC)), SystemRandom()
        authenticator = Authenticator(Secret("nobody's"), self.signer, store.get, clock.now)

        def policy() -> Policy:
            return server.policy.current()

        def custom_resources() -> list[CustomSchema]:
            return server.registry.openapi()

        reviews = Reviews(
            authenticator, policy=policy, stored=store.get, signer=self.signer, clock=clock, random=random
        )
        metrics = Metrics("test", of_process=False)
        openapi = OpenApi(self.schemas, BUILT_IN, VERSION, custom=custom_resources)
        checks = EndpointChecks({"ping": lambda: None}, {"storage": store.why_not_writable})
        paths = ServerPaths(openapi, version_document(VERSION, "linux/amd64"), checks, metrics.render, clock.now)
        runtime = Runtime(clock=clock, random=random, log=silent_log(), metrics=metrics)
        server = ApiServer(store, self.schemas, runtime, ServerServes(extra_paths=paths.handlers(), reviews=reviews))
        return server

    def speaking_for(self, admin: Transport, who: Actor | Bearer) -> Transport:
        assert self.server is not None
        assert isinstance(who, Actor), "in process nobody shows a token"
        return InProcessTransport(self.server, User(who.user, (*who.groups, AUTHENTICATED)))

    def forget(self) -> bool:
        assert self.store is not None
        self.store.compact(self.store.revision)
        return True


@dataclass
class Listening:
    """A server on a socket."""

    access: ClusterAccess
    capabilities: DriverCapabilities
    opened: list[HttpTransport] = field(default_factory=list)

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
                group = {"impersonate-group": groups[0]} if groups else {}
                return WithHeaders(admin, {"impersonate-user": user, **group})
            case Bearer(""):
                return OneAtATime(replace(self.access, credentials=FixedCredentials()))
            case Bearer(token):
                return WithHeaders(admin, {"authorization": f"Bearer {token}"})

    def forget(self) -> bool:
        """Nobody can be asked to: it happened long ago, or not yet."""
        return False


@dataclass
class WithHeaders:
    """The same connections, with something to say in each request."""

    is_remote: ClassVar[bool] = False

    inner: Transport
    headers: Mapping[str, str]

    def _with(self, request: HttpRequest) -> HttpRequest:
        return replace(request, headers={**request.headers, **self.headers})

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
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

    is_remote: ClassVar[bool] = False

    access: ClusterAccess

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
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
