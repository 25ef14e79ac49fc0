"""Users, accounts and policies for tests of the API server's edge: a store with a few objects, and what reads it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from random import Random
from typing import Any

from cryptography.hazmat.primitives.asymmetric import rsa

from onenode.apiserver.access.authentication import Authenticator
from onenode.apiserver.access.rbac_rules import ADMIN, Policy
from onenode.apiserver.access.reviews import Reviews
from onenode.apiserver.access.signed_tokens import TokenSigner
from onenode.apiserver.store.versions import Key, Stored
from orlop.foundation.structured_log import Secret
from orlop.kube.kinds import SERVICE_ACCOUNT

ADMIN_TOKEN = "the-admins-token"
NOW = datetime(2026, 8, 1, 12, 0, tzinfo=UTC)


@cache
def signer() -> TokenSigner:
    return TokenSigner(rsa.generate_private_key(public_exponent=65537, key_size=2048))


@dataclass
class SettableClock:
    """Says what it is told; nothing here waits."""

    moment: datetime = NOW

    def now(self) -> datetime:
        return self.moment

    def pass_by(self, **time: float) -> None:
        self.moment += timedelta(**time)


@dataclass
class People:
    """The objects that tokens are about, who recognises them, and who reviews."""

    policy: Policy = field(default_factory=Policy)
    clock: SettableClock = field(default_factory=SettableClock)
    objects: dict[Key, Stored] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.authenticator = Authenticator(Secret(ADMIN_TOKEN), signer(), self.objects.get, self.clock.now)
        self.reviews = Reviews(
            self.authenticator,
            policy=lambda: self.policy,
            stored=self.objects.get,
            signer=signer(),
            clock=self.clock,
            random=Random(1),
        )

    def put(self, resource: str, namespace: str, name: str, uid: str, **more: Any) -> None:
        key = Key(resource, namespace, name)
        metadata = {"namespace": namespace, "name": name, "uid": uid, **more.pop("metadata", {})}
        value = {"metadata": metadata, **more}
        self.objects[key] = Stored(key, 1, json.dumps(value).encode())

    def remove(self, resource: str, namespace: str, name: str) -> None:
        del self.objects[Key(resource, namespace, name)]

    async def token(self, namespace: str, name: str, **spec: Any) -> str:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = await self.reviews.review(SERVICE_ACCOUNT, body, ADMIN, namespace, name)
        token: str = made["status"]["token"]
        return token


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}
