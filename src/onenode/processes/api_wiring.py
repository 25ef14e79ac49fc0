"""The one-machine API server (onenode) as a part of a process: built from a state folder, served while it is entered.

Order: the address is bound → the folder is made → the database in it is opened, which keeps every other process out →
certificates, keys and the admin's token are made where they are missing → the socket is bound → the controllers beside
the server begin → the server listens → the kubeconfig is written, so that a client that finds it can connect. Leaving:
nobody new is let in, the controllers end, watches end, the database is closed.

Imported only by a process that was asked to serve: aiohttp, cryptography and the schemas cost 30 MB.
"""

from __future__ import annotations

import asyncio
import platform
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from onenode.apiserver.access.authentication import Authenticator
from onenode.apiserver.access.certificates import ServerCertificates, UnusableCertificate, ensure_certificates
from onenode.apiserver.access.rbac_rules import AUTHENTICATED, MASTERS, Policy, User
from onenode.apiserver.access.reviews import Reviews
from onenode.apiserver.access.signed_tokens import TokenSigner, ensure_signer
from onenode.apiserver.answers.openapi import CustomSchema, OpenApi
from onenode.apiserver.edge.front_door import FrontDoor
from onenode.apiserver.edge.http_listener import (
    ListenerSettings,
    Opening,
    allow_connections,
    bind_tcp,
    listening,
    server_tls,
)
from onenode.apiserver.edge.in_process_client import InProcessTransport
from onenode.apiserver.edge.server_paths import EndpointChecks, ServerPaths, version_document
from onenode.apiserver.edge.state_folder import (
    SOCKET,
    UnusableFolder,
    ensure_admin_token,
    last_port,
    make_folder,
    write_kubeconfig,
)
from onenode.apiserver.requests.request_handler import ApiServer, ServerOptions
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import StoreUnusable, WriteFailed
from onenode.apiserver.upkeep.namespace_furnishing import NamespaceFurnishing
from onenode.apiserver.verbs.kubelet_streams import NO_KUBELETS, KubeletSockets
from orlop.foundation.clock import Clock
from orlop.foundation.http_edge import ListenAddress
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Secret
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import SocketUnusable, bind_root_only, claim_socket
from orlop.kube.kinds import BUILT_IN, DEPLOYMENT, REPLICA_SET, STATEFUL_SET, Kind
from orlop.processes.daemon import CannotGoOn

if TYPE_CHECKING:
    from orlop.kube.cache.informers import Informers
    from orlop.kube.client import KubeClient
    from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics

VERSION: Final = "v1.37.0+orlop"
# Go's names of processors, as clients know them from Kubernetes.
GO_NAMES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
TOKEN_KEY: Final = "tokens.key"  # noqa: S105 - the name of a file
# Who our controllers are; the rights are a master's, as Kubernetes' own roles for them are not here.
CONTROLLERS: Final = User("system:kube-controller-manager", (MASTERS, AUTHENTICATED))


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
    ca_certificate: Path

    @property
    def url(self) -> str:
        return f"https://{self.address}"


@dataclass(frozen=True, slots=True)
class _Keys:
    certificates: ServerCertificates
    signer: TokenSigner
    admin_token: Secret[str]


@asynccontextmanager
async def serving_api(
    settings: ApiSettings, runtime: Runtime, more: MoreControllers | None = None
) -> AsyncIterator[RunningApi]:
    """`more` run beside the server's own controllers. Raises `CannotGoOn` with the reason."""
    async with AsyncExitStack() as stack:
        try:
            begun = await _begin(settings, runtime, stack, more)
        except (UnusableFolder, UnusableCertificate, StoreUnusable) as error:
            raise CannotGoOn(str(error)) from None
        except WriteFailed as error:  # of what every API server has from its beginning
            raise CannotGoOn(
                f"The state folder {settings.state} cannot be written to: {error}. "
                "Make room on its disk, or mend it, and start again."
            ) from None
        yield begun


async def _begin(
    settings: ApiSettings, runtime: Runtime, stack: AsyncExitStack, more: MoreControllers | None
) -> RunningApi:
    listener = stack.enter_context(_bound_again(settings))
    make_folder(settings.state)
    store = await stack.enter_async_context(durable_store(settings.state, first_revision=_milliseconds(runtime.clock)))
    keys = _ensure_keys(settings.state, runtime)
    claim = stack.enter_context(claim_socket(settings.state / SOCKET))
    openings = [
        Opening(listener, server_tls(str(keys.certificates.server_certificate), str(keys.certificates.server_key))),
        Opening(bind_root_only(claim), None),
    ]
    address = ListenAddress(*listener.getsockname()[:2])
    # The controllers of workloads are among those that may run beside the server's own.
    not_run = () if more is not None else (DEPLOYMENT, REPLICA_SET, STATEFUL_SET)
    server, door = _door(store, keys, runtime, address, settings.kubelets, not_run)
    await stack.enter_async_context(server.running())
    ca = keys.certificates.ca_certificate.read_text()
    furnishing = NamespaceFurnishing(server, store, ca, clock=runtime.clock, random=runtime.random, log=runtime.log)
    await stack.enter_async_context(furnishing.running())
    allow_connections(settings.most_connections, runtime.log)
    limits = ListenerSettings(most_connections=settings.most_connections)
    await stack.enter_async_context(listening(openings, door, runtime, limits))
    authority = keys.certificates.ca_certificate
    path = write_kubeconfig(settings.state, f"https://{address}", authority, keys.admin_token)
    await stack.enter_async_context(_soon(partial(_run_controllers, server, runtime, more)))
    return RunningApi(server, address, claim.path, path, authority)


@asynccontextmanager
async def _soon(run: Callable[[], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """Runs it beside what is inside; it begins when nobody waits for the server to be ready any more."""
    async with TaskGroup() as tasks:
        task = tasks.start(run(), name="controllers")
        try:
            yield
        finally:
            task.cancel()


async def _run_controllers(server: ApiServer, runtime: Runtime, more: MoreControllers | None) -> None:
    from onenode.controllers.garbage_collection.garbage_collector import garbage_collector  # noqa: PLC0415 - imported while the server starts listening
    from onenode.controllers.storage_protection import storage_protection  # noqa: PLC0415 - as above
    from orlop.kube.cache.informers import Informers  # noqa: PLC0415 - as above
    from orlop.kube.client import KubeClient  # noqa: PLC0415 - as above
    from orlop.kube.events.event_bodies import Reporter  # noqa: PLC0415 - as above
    from orlop.kube.events.event_recorder import recording  # noqa: PLC0415 - as above
    from orlop.kube.queue.workqueue_metrics import WorkqueueMetrics  # noqa: PLC0415 - as above

    clock, random, log = runtime.clock, runtime.random, runtime.log
    transport = InProcessTransport(server, CONTROLLERS)
    client = KubeClient(transport, clock=clock, random=random, log=log, name="kube-controller-manager")
    metrics = WorkqueueMetrics(runtime.metrics)
    async with (
        Informers(client, clock=clock, random=random, log=log) as informers,
        recording(client, Reporter("garbage-collector-controller", "", in_core=True), runtime) as of_collection,
        storage_protection(client, informers, runtime, metrics),
        garbage_collector(client, runtime, of_collection, metrics),
        more(client, informers, metrics) if more is not None else nullcontext(),
    ):
        await asyncio.Event().wait()


def _ensure_keys(folder: Path, runtime: Runtime) -> _Keys:
    certificates = ensure_certificates(folder, runtime.clock.now())
    return _Keys(certificates, ensure_signer(folder / TOKEN_KEY), ensure_admin_token(folder, runtime.random))


def _door(
    store: ObjectStore,
    keys: _Keys,
    runtime: Runtime,
    address: ListenAddress,
    kubelets: KubeletSockets,
    not_run: Sequence[Kind],
) -> tuple[ApiServer, FrontDoor]:
    def current_policy() -> Policy:
        return server.policy.current()

    def custom_resources() -> list[CustomSchema]:
        return server.registry.openapi()

    schemas = Schemas.load()
    authenticator = Authenticator(keys.admin_token, keys.signer, store.get, runtime.clock.now)
    reviews = Reviews(
        authenticator,
        policy=current_policy,
        stored=store.get,
        signer=keys.signer,
        clock=runtime.clock,
        random=runtime.random,
    )
    version = version_document(
        VERSION, f"{platform.system().lower()}/{GO_NAMES.get(platform.machine(), platform.machine())}"
    )
    openapi = OpenApi(schemas, BUILT_IN, VERSION, custom=custom_resources)
    checks = EndpointChecks({"ping": lambda: None}, {"storage": store.why_not_writable})
    paths = ServerPaths(openapi, version, checks, runtime.metrics.render, runtime.clock.now)
    served = ServerOptions(
        extra_paths=paths.handlers(), reviews=reviews, address=str(address), kubelets=kubelets, not_run=not_run
    )
    server = ApiServer(store, schemas, runtime, served)
    return server, FrontDoor(server, authenticator, paths, server.policy.decide)


def _milliseconds(clock: Clock) -> int:
    """Behind every revision that an older database in this place has given, as none is written to so often."""
    return int(clock.now().timestamp() * 1000)


def _bound_again(settings: ApiSettings) -> socket.socket:
    """Where any port will do, the one it had before: contexts and copies of the kubeconfig name it."""
    if not settings.listen.port and (port := last_port(settings.state)):
        with suppress(SocketUnusable):
            return bind_tcp(ListenAddress(settings.listen.host, port))
    return bind_tcp(settings.listen)
