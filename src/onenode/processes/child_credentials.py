"""Credentials of the children of `orlop up`: tokens of service accounts, as the pods of a cluster get them.

A child of `orlop up` is no pod, so no kubelet mounts a token for it. Here the token of its service account is
requested, bound to the Node where the child acts for one (policies see the name of the Node in the token), written to a
file, and renewed long before it expires, or when the Node was created again, which ends the tokens bound to it. Beside
it lies a kubeconfig that names the file, so no child has to be restarted.

Order: token → kubeconfig, each whole or not at all. A process that finds the kubeconfig finds a token too.

Must not log a token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onenode.apiserver.access.certificates import write_private
from onenode.apiserver.edge.state_folder import kubeconfig_text
from orlop.foundation.backoff import Backoff
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NODE, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, uid

TOKEN_SECONDS: Final = 3600
RENEW_AFTER_SECONDS: Final = 0.8 * TOKEN_SECONDS
CHECK_SECONDS: Final = 10.0
"""How often the Node is checked: the kubelet creates a deleted one again within ten seconds."""
NODE_SECONDS: Final = 0.1
AGAIN: Final = Backoff(initial=0.1, factor=2.0, cap=10.0, jitter=0.2)


@dataclass(frozen=True, slots=True)
class ChildAccount:
    """The service account of a child, and its kubeconfig."""

    name: ObjectName
    kubeconfig: Path
    is_of_node: bool = False
    """Whether its tokens are bound to the Node."""

    @property
    def token(self) -> Path:
        return self.kubeconfig.with_suffix(".token")


@dataclass(frozen=True, slots=True)
class ApiAddress:
    """What a kubeconfig names beside credentials."""

    url: str
    ca_certificate: Path


class ChildCredentials:
    """`node` is the name of the Node, which may not exist yet."""

    def __init__(self, api: ApiAddress, client: KubeClient, node: str, runtime: Runtime) -> None:
        self._api = api
        self._client = client
        self._node = node
        self._clock = runtime.clock
        self._random = runtime.random
        self._log = runtime.log

    @asynccontextmanager
    async def kept(self, accounts: Sequence[ChildAccount]) -> AsyncIterator[None]:
        """Keep the files of the accounts valid while this is entered."""
        async with TaskGroup() as tasks:
            running = [tasks.start(self._keep(each), name=f"credentials of {each.name.name}") for each in accounts]
            try:
                yield
            finally:
                for task in running:
                    task.cancel()

    async def _keep(self, account: ChildAccount) -> None:
        failures = 0
        while True:
            try:
                node_uid = await self._node_uid() if account.is_of_node else ""
                await self._renew(account, node_uid)
                failures = 0
                await self._until_due(account, node_uid)
            except (ApiError, OSError) as error:
                failures += 1
                why = error.message if isinstance(error, ApiError) else str(error)
                self._log.warning("credentials not renewed", account=str(account.name), error=why)
                await self._clock.sleep(AGAIN.delay(failures, self._random))

    async def _renew(self, account: ChildAccount, node_uid: str) -> None:
        spec: dict[str, Any] = {"expirationSeconds": TOKEN_SECONDS}
        if account.is_of_node:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": NODE.kind, "name": self._node, "uid": node_uid}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        response = await self._client.create_subresource(SERVICE_ACCOUNT, account.name, "token", body)
        write_private(account.token, f"{response['status']['token']}\n".encode())
        user = f"tokenFile: {account.token.name}"  # relative to the kubeconfig: a path may hold any character
        text = kubeconfig_text(self._api.url, self._api.ca_certificate, account.name.name, user)
        write_private(account.kubeconfig, text.encode())
        self._log.info("credentials renewed", account=str(account.name))

    async def _until_due(self, account: ChildAccount, node_uid: str) -> None:
        due = self._clock.elapsed() + RENEW_AFTER_SECONDS
        while self._clock.elapsed() < due:
            await self._clock.sleep(CHECK_SECONDS)
            if account.is_of_node and await self._node_uid() != node_uid:
                return

    async def _node_uid(self) -> str:
        """Wait until the Node exists."""
        while True:
            with suppress(NotFound):
                return uid(await self._client.get(NODE, ObjectName(None, self._node)))
            await self._clock.sleep(NODE_SECONDS)
