"""The embedded API server as a part of a process: built from a state folder, served while it is entered.

Order: the address is bound → the folder is made → the database in it is opened, which keeps every other process out →
certificates, keys and the admin's token are made where they are missing → the socket is bound → the controllers beside
the server begin → the server listens → the kubeconfig is written, so that whoever finds it can connect. Leaving: nobody
new is let in, the controllers end, watches end, the database is closed.

Imported only by a process that was asked to serve: aiohttp, cryptography and the schemas cost 30 MB.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import resource
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from orlop.embedded.apiserver.access_rules import AUTHENTICATED, MASTERS, Policy, User
from orlop.embedded.apiserver.authentication import Authenticator
from orlop.embedded.apiserver.certificates import ServerCertificates, UnusableCertificate, ensure_certificates
from orlop.embedded.apiserver.front_door import FrontDoor
from orlop.embedded.apiserver.http_listener import BACKLOG, Given, ListenerSettings, Opening, listening, server_tls
from orlop.embedded.apiserver.in_process import InProcessTransport
from orlop.embedded.apiserver.kubelet_streams import NO_KUBELETS, KubeletSockets
from orlop.embedded.apiserver.namespace_furnishing import NamespaceFurnishing
from orlop.embedded.apiserver.object_store.database_journal import durable_store
from orlop.embedded.apiserver.object_store.errors import StoreUnusable, WriteFailed
from orlop.embedded.apiserver.object_store.store import ObjectStore
from orlop.embedded.apiserver.openapi import OpenApi
from orlop.embedded.apiserver.request_handler import ApiServer
from orlop.embedded.apiserver.reviews import Reviews, Tools
from orlop.embedded.apiserver.schemas import Schemas
from orlop.embedded.apiserver.server_paths import Checks, ServerPaths, version_document
from orlop.embedded.apiserver.server_tools import ServerTools
from orlop.embedded.apiserver.state_folder import (
    SOCKET,
    UnusableFolder,
    ensure_admin_token,
    last_port,
    make_folder,
    write_kubeconfig,
)
from orlop.embedded.apiserver.token_claims import TokenSigner, ensure_signer
from orlop.foundation.clock import Clock
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.structured_log import Secret
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable, bind_root_only, claim_socket
from orlop.kube.kinds import BUILT_IN
from orlop.processes.daemon import CannotGoOn, Surroundings

if TYPE_CHECKING:
    from orlop.kube.client import KubeClient
    from orlop.kube.informers import Informers
    from orlop.kube.workqueue_metrics import WorkqueueMetrics

VERSION: Final = "v1.37.0+orlop"
TOKEN_KEY: Final = "tokens.key"  # noqa: S105 - the name of a file
# Who our controllers are; the rights are a master's, as Kubernetes' own roles for them are not here.
CONTROLLERS: Final = User("system:kube-controller-manager", (MASTERS, AUTHENTICATED))
# Besides connections: the database, sockets, standard streams, and what libraries keep open.
OTHER_FILES: Final = 100


MoreControllers: TypeAlias = "Callable[[KubeClient, Informers, WorkqueueMetrics], AbstractAsyncContextManager[None]]"


@dataclass(frozen=True, slots=True)
class ApiSettings:
    state: Path
    listen: ListenAddress
    most_connections: int
    kubelets: KubeletSockets = NO_KUBELETS
    """The socket of a node's kubelet, for logs, commands and statistics."""


@dataclass(frozen=True, slots=True)
class RunningApi:
    """Where it is reached; `socket` is for root alone."""

    server: ApiServer
    address: ListenAddress
    socket: Path
    kubeconfig: Path

    @property
    def url(self) -> str:
        return f"https://{self.address}"


@dataclass(frozen=True, slots=True)
class _Keys:
    certificates: ServerCertificates
    signer: TokenSigner
    admin_token: Secret[str]


@asynccontextmanager
async def api_side(
    settings: ApiSettings, given: Surroundings, more: MoreControllers | None = None
) -> AsyncIterator[RunningApi]:
    """`more` run beside the server's own controllers. Raises `CannotGoOn` with the reason."""
    async with AsyncExitStack() as stack:
        try:
            begun = await _begin(settings, given, stack, more)
        except (UnusableFolder, UnusableCertificate, StoreUnusable) as error:
            raise CannotGoOn(str(error)) from None
        except WriteFailed as error:  # of what every API server has from its beginning
            raise CannotGoOn(
                f"The state folder {settings.state} cannot be written to: {error}. "
                "Make room on its disk, or mend it, and start again."
            ) from None
        yield begun


async def _begin(
    settings: ApiSettings, given: Surroundings, stack: AsyncExitStack, more: MoreControllers | None
) -> RunningApi:
    listener = stack.enter_context(_bound_again(settings))
    make_folder(settings.state)
    store = await stack.enter_async_context(durable_store(settings.state, first_revision=_milliseconds(given.clock)))
    keys = _ensure_keys(settings.state, given)
    claim = stack.enter_context(claim_socket(settings.state / SOCKET))
    openings = [
        Opening(listener, server_tls(str(keys.certificates.server_certificate), str(keys.certificates.server_key))),
        Opening(bind_root_only(claim), None),
    ]
    address = ListenAddress(*listener.getsockname()[:2])
    server, door = _door(store, keys, given, address, settings.kubelets)
    await stack.enter_async_context(server.running())
    ca = keys.certificates.ca_certificate.read_text()
    furnishing = NamespaceFurnishing(server, store, ca, clock=given.clock, random=given.random, log=given.log)
    await stack.enter_async_context(furnishing.running())
    _allow_files(2 * settings.most_connections + OTHER_FILES, given)
    limits = ListenerSettings(most_connections=settings.most_connections)
    surroundings = Given(given.clock, given.log, given.metrics)
    await stack.enter_async_context(listening(openings, door, surroundings, limits))
    path = write_kubeconfig(settings.state, f"https://{address}", keys.certificates.ca_certificate, keys.admin_token)
    await stack.enter_async_context(_soon(partial(_run_controllers, server, given, more)))
    return RunningApi(server, address, claim.path, path)


@asynccontextmanager
async def _soon(run: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs it beside what is inside; it begins when nobody waits for the server to be ready any more."""
    async with TaskGroup() as tasks:
        task = tasks.start(run(), name="controllers")
        try:
            yield
        finally:
            task.cancel()


async def _run_controllers(server: ApiServer, given: Surroundings, more: MoreControllers | None) -> None:
    from orlop.embedded.controllers.storage_protection import (  # noqa: PLC0415 - the server is ready before it
        Tools as ControllerTools,
    )
    from orlop.embedded.controllers.storage_protection import storage_protection  # noqa: PLC0415 - as above
    from orlop.kube.client import KubeClient  # noqa: PLC0415 - as above
    from orlop.kube.informers import Informers  # noqa: PLC0415 - as above
    from orlop.kube.workqueue_metrics import WorkqueueMetrics  # noqa: PLC0415 - as above

    clock, random, log = given.clock, given.random, given.log
    transport = InProcessTransport(server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="kube-controller-manager")
    metrics = WorkqueueMetrics(given.metrics)
    tools = ControllerTools(clock, random, log, metrics)
    async with (
        Informers(client, clock=clock, random=random, log=log) as informers,
        storage_protection(client, informers, tools),
        more(client, informers, metrics) if more is not None else nullcontext(),
    ):
        await asyncio.Event().wait()


def _ensure_keys(folder: Path, given: Surroundings) -> _Keys:
    certificates = ensure_certificates(folder, given.clock.now())
    return _Keys(certificates, ensure_signer(folder / TOKEN_KEY), ensure_admin_token(folder, given.random))


def _door(
    store: ObjectStore, keys: _Keys, given: Surroundings, address: ListenAddress, kubelets: KubeletSockets
) -> tuple[ApiServer, FrontDoor]:
    def current_policy() -> Policy:
        return server.policy.current()

    schemas = Schemas.load()
    authenticator = Authenticator(keys.admin_token, keys.signer, store.get, given.clock.now)
    tools = Tools(current_policy, store.get, keys.signer, given.clock, given.random)
    version = version_document(VERSION, f"{platform.system().lower()}/{platform.machine()}")
    openapi = OpenApi(schemas, BUILT_IN, VERSION)
    checks = Checks({"ping": lambda: None}, {"storage": store.why_not_writable})
    paths = ServerPaths(openapi, version, checks, given.metrics.render, given.clock.now)
    server = ApiServer(
        ServerTools(store, schemas, given.clock, given.random, given.log),
        extra_paths=paths.handlers(),
        reviews=Reviews(authenticator, tools),
        address=str(address),
        kubelets=kubelets,
    )
    return server, FrontDoor(server, authenticator, paths, server.policy.decide)


def _milliseconds(clock: Clock) -> int:
    """Behind every revision that an older database in this place has given, as none is written to so often."""
    return int(clock.now().timestamp() * 1000)


def _bound_again(settings: ApiSettings) -> socket.socket:
    """Where any port will do, the one it had before: contexts and copies of the kubeconfig name it."""
    if not settings.listen.port and (port := last_port(settings.state)):
        with suppress(SocketUnusable):
            return _bound(ListenAddress(settings.listen.host, port))
    return _bound(settings.listen)


def _bound(address: ListenAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise SocketUnusable(f"The address {address} is in use: give another one with --listen.") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SocketUnusable(f"The address {address} cannot be listened on: {reason}.") from None


def _allow_files(wanted: int, given: Surroundings) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        given.log.warning("fewer connections than asked for: the limit of open files is too low", limit=hard)
