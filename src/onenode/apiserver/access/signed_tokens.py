"""Service-account tokens: what they claim, and how they are signed and read. RS256, as Kubernetes' own.

`TokenSigner` holds the key, which is made once and kept in the state folder. Reading a token proves that this server
signed it and that this is its time; whether the account and the pod it names are still the same is the server's
question, since only the server has the objects.

Must not log a token, nor put one into an error.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from onenode.apiserver.access.certificates import UnusableCertificate, write_private
from onenode.apiserver.access.rbac_rules import service_account_user

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
ALGORITHM: Final = "RS256"
KEY_BITS: Final = 2048
LONGEST_TOKEN: Final = 16 * 1024
PARTS: Final = 3
# Clocks that are set back a little must not make a fresh token invalid; one that is over gets no such favour.
LEEWAY: Final = timedelta(minutes=1)


class InvalidToken(Exception):
    """A token that is none of ours, or not any more; says why without quoting it."""


@dataclass(frozen=True, slots=True)
class BoundObject:
    """The pod, secret or node with which a token ends."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class TokenClaims:
    namespace: str
    account: str
    account_uid: str
    audiences: tuple[str, ...]
    issued: datetime
    expires: datetime
    id: str
    bound: BoundObject | None = None
    node: BoundObject | None = None
    """The node of the pod to which the token is bound; without a uid if there was no such Node. It ends no token."""

    def good_at(self, now: datetime) -> bool:
        return self.issued - LEEWAY <= now < self.expires

    @property
    def user_name(self) -> str:
        return service_account_user(self.namespace, self.account)

    @property
    def groups(self) -> tuple[str, ...]:
        return ("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated")


class TokenSigner:
    """Signs and reads tokens with one key."""

    def __init__(self, key: rsa.RSAPrivateKey) -> None:
        self._key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._key_id = _encoded(hashlib.sha256(public).digest())

    def sign(self, claims: TokenClaims) -> str:
        header = {"alg": ALGORITHM, "kid": self._key_id}
        signed = f"{_encoded(msgspec.json.encode(header))}.{_encoded(msgspec.json.encode(_payload(claims)))}"
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"

    def read(self, token: str, audience: str, now: datetime) -> TokenClaims:
        """The claims of a token of ours that is good now and for this audience."""
        claims = _claims(self._verified(token))
        if not claims.good_at(now):
            raise InvalidToken("the token is not valid now: its time has not begun, or is over")
        if audience not in claims.audiences:
            raise InvalidToken(f"the token is for {', '.join(claims.audiences)} and not for {audience}")
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        parts = token.split(".")
        if len(token) > LONGEST_TOKEN or len(parts) != PARTS:
            raise InvalidToken("this is no token of three parts")
        try:
            header, payload, signature = (_decoded(part) for part in parts)
            signed = f"{parts[0]}.{parts[1]}".encode()
            self._key.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
            read = msgspec.json.decode(header), msgspec.json.decode(payload)
        except (ValueError, UnicodeError, InvalidSignature, msgspec.DecodeError):
            raise InvalidToken("the token was not signed by this server") from None
        # Signed by us and yet another algorithm: somebody plays with headers.
        if not isinstance(read[0], dict) or read[0].get("alg") != ALGORITHM or not isinstance(read[1], dict):
            raise InvalidToken("the token was not signed by this server")
        return read[1]


def ensure_signer(path: Path) -> TokenSigner:
    """The signer whose key is in the file; made when there is none."""
    try:
        if not path.exists():
            made = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
            pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
            write_private(path, made.private_bytes(pem, form, serialization.NoEncryption()))
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise UnusableCertificate(
            f"{path} cannot be read or made: {error.strerror}. Mend that and start again."
        ) from None
    except (ValueError, TypeError) as error:
        raise UnusableCertificate(f"{path} holds no key: {error}; remove it, and every token ends") from None
    if not isinstance(key, rsa.RSAPrivateKey):
        raise UnusableCertificate(f"{path} holds a key that is not RSA's; remove it, and every token ends")
    return TokenSigner(key)


def _payload(claims: TokenClaims) -> dict[str, Any]:
    about: dict[str, Any] = {
        "namespace": claims.namespace,
        "serviceaccount": {"name": claims.account, "uid": claims.account_uid},
    }
    if claims.bound is not None:
        about[claims.bound.kind.lower()] = {"name": claims.bound.name, "uid": claims.bound.uid}
    if claims.node is not None:
        about["node"] = {"name": claims.node.name, **({"uid": claims.node.uid} if claims.node.uid else {})}
    return {
        "aud": list(claims.audiences),
        "exp": int(claims.expires.timestamp()),
        "iat": int(claims.issued.timestamp()),
        "iss": ISSUER,
        "jti": claims.id,
        "kubernetes.io": about,
        "nbf": int(claims.issued.timestamp()),
        "sub": claims.user_name,
    }


def _claims(payload: dict[str, Any]) -> TokenClaims:
    about = payload["kubernetes.io"]
    # Of a token that is bound to a pod, the node is only named.
    kinds = [kind for kind in ("Pod", "Secret", "Node") if kind.lower() in about]
    named = [BoundObject(kind, **{"uid": "", **about[kind.lower()]}) for kind in kinds]
    return TokenClaims(
        namespace=about["namespace"],
        account=about["serviceaccount"]["name"],
        account_uid=about["serviceaccount"]["uid"],
        audiences=tuple(payload["aud"]),
        issued=datetime.fromtimestamp(payload["iat"], UTC),
        expires=datetime.fromtimestamp(payload["exp"], UTC),
        id=payload["jti"],
        bound=named[0] if named else None,
        node=named[1] if len(named) > 1 else None,
    )


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
