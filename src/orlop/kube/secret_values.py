"""Decode the values of a Secret to the text that CSI drivers accept. Pure.

CSI requests carry secrets as protobuf strings, which hold UTF-8 and nothing else. A value that cannot be decoded is
refused: a credential with replaced bytes would reach the driver as another, wrong credential.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from orlop.kube import objects


class UnusableSecret(ValueError):
    """The sentence names the Secret and the key, and never quotes the value."""


def secret_values(secret: Mapping[str, Any]) -> dict[str, str]:
    """Return the decoded `data` of a Secret, as the API server returned it. Raises `UnusableSecret`."""
    data = secret.get("data") or {}
    if not isinstance(data, Mapping):
        raise UnusableSecret(f"the data of the secret {objects.name_of(secret)} is not a map of keys to values")
    return {key: _decoded(secret, key, value) for key, value in data.items()}


def _decoded(secret: Mapping[str, Any], key: str, value: Any) -> str:
    where = f"the value of the key {key!r} in the secret {objects.name_of(secret)}"
    # `from None` in both cases: the exceptions of base64 and of the codec quote the bytes, and end up in tracebacks.
    try:
        decoded = base64.b64decode(value, validate=True)
    except (TypeError, ValueError):
        raise UnusableSecret(f"{where} is not valid base64: create the secret again") from None
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        raise UnusableSecret(f"{where} is not UTF-8 text, which is all that a CSI driver can be sent") from None
