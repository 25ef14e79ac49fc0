"""The credentials of `orlop up`'s children: of one account and one Node, and renewed before they end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from stat import S_IMODE

import pytest
import yaml

from onenode.apiserver.access.authentication import Authenticator
from onenode.apiserver.access.rbac_rules import Policy, User
from onenode.apiserver.access.reviews import Reviews
from onenode.apiserver.store.versions import Key, Stored
from onenode.processes.child_credentials import RENEW_AFTER_SECONDS, ApiAddress, ChildAccount, ChildCredentials
from orlop.foundation.structured_log import Secret
from orlop.kube.kinds import NODE, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, uid
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_users import ADMIN_TOKEN, bearer, signer
from support.worlds import ClusterWorld

pytestmark = pytest.mark.virtual_time


class CredentialsWorld(ClusterWorld):
    """An API server that signs tokens, and the folder of one child."""

    def __init__(self, folder: Path) -> None:
        clock = VirtualClock()
        self.authenticator = Authenticator(Secret(ADMIN_TOKEN), signer(), self._stored, clock.now)
        reviews = Reviews(
            self.authenticator,
            policy=Policy,
            stored=self._stored,
            signer=signer(),
            clock=clock,
            random=Random(1),
        )
        super().__init__(clock, reviews=reviews)
        self.kubeconfig = folder / "orlop-node.kubeconfig"
        (folder / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
        self.api = ApiAddress("https://127.0.0.1:6443", folder / "ca.crt")

    def _stored(self, key: Key) -> Stored | None:
        return self.on.store.get(key)

    @asynccontextmanager
    async def child(self, *, is_of_node: bool = True) -> AsyncIterator[ChildAccount]:
        account = ChildAccount(ObjectName("default", "orlop-node"), self.kubeconfig, is_of_node)
        async with ChildCredentials(self.api, self.client, "n1", self.runtime("up")).kept([account]):
            yield account

    def user(self) -> User | None:
        """Who the API server takes the child for now."""
        return self.authenticator.user_of(bearer(self.token()))

    def token(self) -> str:
        user = yaml.safe_load(self.kubeconfig.read_text())["users"][0]["user"]
        return (self.kubeconfig.parent / user["tokenFile"]).read_text().strip()

    def messages(self) -> list[str]:
        return [entry.message for entry in self.log if entry.message == "credentials not renewed"]


async def test_the_token_is_of_the_account_and_names_the_node(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        node = await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.kubeconfig.exists)
        user = world.user()

        assert user is not None
        assert user.name == "system:serviceaccount:default:orlop-node"
        extra = dict(user.extra or {})
        assert extra["authentication.kubernetes.io/node-name"] == ("n1",)
        assert extra["authentication.kubernetes.io/node-uid"] == (uid(node),)
        assert [S_IMODE(each.stat().st_mode) for each in tmp_path.glob("orlop-node.*")] == [0o600, 0o600]


async def test_an_account_of_no_node_gets_a_token_without_one(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child(is_of_node=False):
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.until(world.kubeconfig.exists)
        user = world.user()

        assert user is not None
        assert [key for key in user.extra or {} if "node" in key] == []


async def test_nothing_is_written_before_the_node_exists_and_waiting_for_it_is_no_failure(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.settle(60)
        assert (world.kubeconfig.exists(), world.messages()) == (False, [])

        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.kubeconfig.exists)


async def test_the_token_is_good_at_every_moment_of_a_day(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.kubeconfig.exists)
        tokens = {world.token()}
        for _ in range(24 * 60):
            await world.settle(60)
            assert world.user() is not None
            tokens.add(world.token())

        assert len(tokens) == pytest.approx(24 * 3600 / RENEW_AFTER_SECONDS, abs=2)


async def test_a_node_that_is_created_again_gets_a_token_of_its_own(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.kubeconfig.exists)
        await world.delete(NODE, "n1")
        await world.settle(5)
        assert world.user() is None

        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(lambda: world.user() is not None, within=30)


async def test_a_missing_account_is_logged_and_tried_again(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(lambda: len(world.messages()) > 1)
        assert not world.kubeconfig.exists()

        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.until(world.kubeconfig.exists, within=30)


async def test_no_token_is_logged(tmp_path: Path):
    async with CredentialsWorld(tmp_path) as world, world.child():
        await world.create(SERVICE_ACCOUNT, {"metadata": {"name": "orlop-node"}})
        await world.create(NODE, {"metadata": {"name": "n1"}})
        await world.until(world.kubeconfig.exists)

        assert [entry for entry in world.log if world.token() in f"{entry.message} {dict(entry.fields)}"] == []
