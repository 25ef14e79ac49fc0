"""Who asks: the user behind a bearer token.

The admin's token is the one in the state folder. A service account's is read by `signed_tokens`, and good only while
the account, and the pod, secret or node it was bound to, are the same that they were: each is looked up, by its uid, at
every request. One that a finalizer keeps from going is gone a minute after its deletion was due. What the signature
proved is remembered, since that never changes.

Must not log a token, nor say why one was refused to who sent it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.apiserver.access.signed_tokens import ISSUER, InvalidToken, TokenClaims, TokenSigner
from onenode.apiserver.store.versions import Key, Stored
from orlop.kube.kinds import NODE, POD, SECRET, SERVICE_ACCOUNT, Kind

if TYPE_CHECKING:
    from orlop.foundation.structured_log import Secret

BOUND_KINDS: Final[Mapping[str, Kind]] = {"Pod": POD, "Secret": SECRET, "Node": NODE}
EXTRA: Final = "authentication.kubernetes.io/"
MOST_REMEMBERED: Final = 4096
DYING_FOR: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Recognised:
    user: User
    audiences: tuple[str, ...]
    """Those that were asked for and that the token is for."""


class _Metadata(msgspec.Struct, rename="camel"):
    uid: str = ""
    deletion_timestamp: datetime | None = None


class _Object(msgspec.Struct):
    metadata: _Metadata


_OBJECT: Final = msgspec.json.Decoder(_Object)


def stored_uid(stored: Stored | None) -> str | None:
    """None where nothing is stored."""
    return None if stored is None else _OBJECT.decode(stored.json).metadata.uid


class Authenticator:
    def __init__(
        self,
        admin_token: Secret[str],
        signer: TokenSigner,
        stored: Callable[[Key], Stored | None],
        now: Callable[[], datetime],
    ) -> None:
        self._admin_token = admin_token
        self._signer = signer
        self._stored = stored
        self._now = now
        self._read: OrderedDict[bytes, TokenClaims] = OrderedDict()

    def user_of(self, headers: Mapping[str, str]) -> User | None:
        """Return the user of a request; None if its headers authenticate nobody."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token:
            return None
        try:
            return self.recognise(token.strip()).user
        except InvalidToken:
            return None

    def recognise(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> Recognised:
        """Raises `InvalidToken`."""
        if hmac.compare_digest(_bytes(token), _bytes(self._admin_token.reveal())):
            if ISSUER not in audiences:
                raise InvalidToken(f"the token is for {ISSUER} alone")
            return Recognised(ADMIN, (ISSUER,))
        claims = self._claims(token, audiences)
        self._refuse_if_ended(claims)
        return Recognised(_user(claims), tuple(one for one in audiences if one in claims.audiences))

    def _claims(self, token: str, audiences: Sequence[str]) -> TokenClaims:
        known = hashlib.sha256(_bytes(token)).digest()
        claims, now = self._read.get(known), self._now()
        if claims is None:
            claims = self._first_read(token, audiences, now)
            self._remember(known, claims)
        if not claims.good_at(now):
            raise InvalidToken("the token is not valid now: its time has not begun, or is over")
        if not set(audiences) & set(claims.audiences):
            raise InvalidToken("the token is for somebody else")
        return claims

    def _first_read(self, token: str, audiences: Sequence[str], now: datetime) -> TokenClaims:
        failure = InvalidToken("the token is for nobody")
        for audience in audiences:
            try:
                return self._signer.read(token, audience, now)
            except InvalidToken as error:
                failure = error
        raise failure

    def _remember(self, known: bytes, claims: TokenClaims) -> None:
        self._read[known] = claims
        if len(self._read) > MOST_REMEMBERED:
            self._read.popitem(last=False)

    def _refuse_if_ended(self, claims: TokenClaims) -> None:
        account = Key(SERVICE_ACCOUNT.resource, claims.namespace, claims.account)
        if not self._lives(account, claims.account_uid):
            raise InvalidToken("the service account of the token is not there any more")
        if claims.bound is None:
            return
        kind = BOUND_KINDS[claims.bound.kind]
        key = Key(kind.resource, claims.namespace if kind.namespaced else "", claims.bound.name)
        if not self._lives(key, claims.bound.uid):
            raise InvalidToken(f"the {claims.bound.kind.lower()} of the token is not there any more")

    def _lives(self, key: Key, uid: str) -> bool:
        stored = self._stored(key)
        if stored is None:
            return False
        found = _OBJECT.decode(stored.json).metadata
        deleted = found.deletion_timestamp
        return found.uid == uid and (deleted is None or deleted >= self._now() - DYING_FOR)


def _user(claims: TokenClaims) -> User:
    extra = {f"{EXTRA}credential-id": (f"JTI={claims.id}",)}
    for bound in (claims.bound, claims.node):
        if bound is not None and bound.kind != "Secret":
            kind = bound.kind.lower()
            extra[f"{EXTRA}{kind}-name"] = (bound.name,)
            extra |= {f"{EXTRA}{kind}-uid": (bound.uid,)} if bound.uid else {}
    return User(claims.user_name, claims.groups, claims.account_uid, extra)


def _bytes(token: str) -> bytes:
    """Headers may hold any bytes."""
    return token.encode(errors="surrogateescape")
