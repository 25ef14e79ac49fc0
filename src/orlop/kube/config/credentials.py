"""Credentials that change: files that are rotated, and plugins that are run when the last credentials have expired.

`FileCredentials` re-reads its files. `PluginCredentials` runs a program, one at a time, and keeps the result until it
expires or is refused. A plugin's output is never quoted; its stderr is, without the values of its environment.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Secret, hide
from orlop.kube.api_errors import CredentialsUnavailable
from orlop.kube.config.cluster_access import ClientCertificate, Credentials
from orlop.kube.config.kubeconfig_files import KubeconfigError
from orlop.kube.objects import InvalidTime, read_time

RE_READ_SECONDS: Final = 10.0
"""kubelet writes a new token when a fifth of the old one's lifetime is left, which is minutes."""
PLUGIN_SECONDS: Final = 60.0
LONGEST_COMPLAINT: Final = 1000
SHORTEST_HIDDEN: Final = 6
"""Shorter values ("1", "prod") are no secrets, and hiding them would make the message unreadable."""


class WrongCredentials(ValueError):
    """The credentials that were read cannot be sent."""


def checked_token(text: str) -> Secret[str]:
    """Return the token without surrounding white space; raise if a header cannot carry it."""
    token = text.strip()
    if not token:
        raise WrongCredentials("holds no token")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise WrongCredentials("holds no token: it has characters that are not allowed in one")
    return Secret(token)


def checked_certificate(certificate: bytes, key: bytes) -> ClientCertificate:
    return ClientCertificate(checked_pem(certificate, b"CERTIFICATE"), Secret(_checked_key(key)))


def checked_pem(content: bytes, what: bytes) -> bytes:
    if b"-----BEGIN " not in content or what + b"-----" not in content:
        raise WrongCredentials(f"holds no {what.decode().lower()} in PEM")
    return content


def _checked_key(content: bytes) -> bytes:
    checked_pem(content, b"PRIVATE KEY")
    if b"ENCRYPTED" in content:  # OpenSSL would ask for the password on the terminal.
        raise WrongCredentials("holds a private key with a password; use one without")
    return content


# ---- files -----------------------------------------------------------------------------------------------------------


class FileCredentials:
    """Credentials in files, re-read by `read`. Its `KubeconfigError` counts only if nothing was ever read."""

    def __init__(self, read: Callable[[], Credentials], clock: Clock) -> None:
        self._read = read
        self._clock = clock
        self._known: Credentials | None = None
        self._read_at = -math.inf

    async def current(self) -> Credentials:
        known = self._known
        if known is not None and self._clock.elapsed() - self._read_at < RE_READ_SECONDS:
            return known
        try:
            known = self._read()
        except KubeconfigError as error:
            # Files are replaced one by one; for a moment they may be missing or not match.
            if known is None:
                raise CredentialsUnavailable(str(error)) from None
        self._known, self._read_at = known, self._clock.elapsed()
        return known

    async def renew(self, refused: Credentials) -> None:
        if self._known == refused:
            self._read_at = -math.inf


# ---- plugins ---------------------------------------------------------------------------------------------------------


class RunProgram(Protocol):
    """Run a program; return its exit code, stdout and stderr. Raise `OSError` if it cannot be run."""

    def __call__(
        self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes
    ) -> Awaitable[tuple[int, bytes, bytes]]: ...


@dataclass(frozen=True, slots=True)
class Plugin:
    """A credential plugin, as configured in a kubeconfig."""

    command: str
    arguments: tuple[str, ...] = field(repr=False)
    environment: Mapping[str, str] = field(repr=False)
    api_version: str
    origin: str
    install_hint: str = ""
    cluster: Mapping[str, Any] | None = None
    """The cluster info for the plugin, with `provideClusterInfo`."""

    def request(self) -> str:
        spec: dict[str, Any] = {"interactive": False}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        return json.dumps({"kind": "ExecCredential", "apiVersion": self.api_version, "spec": spec})


@dataclass(frozen=True, slots=True)
class _PluginResponse:
    credentials: Credentials
    expires: datetime | None


class PluginCredentials:
    """Credentials from a plugin, which also gets our own process's `environment`."""

    def __init__(self, plugin: Plugin, run: RunProgram, environment: Mapping[str, str], clock: Clock) -> None:
        self._plugin = plugin
        self._run = run
        self._environment = environment
        self._clock = clock
        self._known: _PluginResponse | None = None
        self._one_at_a_time = asyncio.Lock()

    async def current(self) -> Credentials:
        async with self._one_at_a_time:
            if self._known is None or self._has_expired(self._known):
                self._known = await self._ask()
            return self._known.credentials

    async def renew(self, refused: Credentials) -> None:
        if self._known is not None and self._known.credentials == refused:
            self._known = None

    def _has_expired(self, answer: _PluginResponse) -> bool:
        return answer.expires is not None and self._clock.now() >= answer.expires

    async def _ask(self) -> _PluginResponse:
        plugin = self._plugin
        environment = {**self._environment, **plugin.environment, "KUBERNETES_EXEC_INFO": plugin.request()}
        try:
            async with self._clock.timeout(PLUGIN_SECONDS):
                code, output, complaint = await self._run((plugin.command, *plugin.arguments), environment, b"")
        except TimeoutError:
            raise self._unavailable(f"did not end within {PLUGIN_SECONDS:.0f} seconds") from None
        except OSError as error:
            hint = f"; {plugin.install_hint}" if plugin.install_hint else ""
            raise self._unavailable(f"cannot be run: {error.strerror or error}{hint}") from None
        if code != 0:
            raise self._unavailable(f"ended with exit code {code}{self._quoted(complaint)}")
        try:
            return _read_answer(output, plugin.api_version)
        except WrongCredentials as error:
            raise self._unavailable(str(error)) from None

    def _quoted(self, complaint: bytes) -> str:
        text = complaint.decode(errors="replace").strip()
        values = (value for value in self._plugin.environment.values() if len(value) >= SHORTEST_HIDDEN)
        return f": {hide(text, values)[-LONGEST_COMPLAINT:]}" if text else " and no message"

    def _unavailable(self, sentence: str) -> CredentialsUnavailable:
        return CredentialsUnavailable(
            f"the credential plugin {self._plugin.command} of {self._plugin.origin} {sentence}"
        )


def _read_answer(output: bytes, api_version: str) -> _PluginResponse:
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError):
        raise WrongCredentials("wrote output that is no JSON") from None
    if not isinstance(answer, Mapping) or answer.get("kind") != "ExecCredential":
        raise WrongCredentials("wrote output that is no ExecCredential")
    if answer.get("apiVersion") != api_version:
        raise WrongCredentials(f"wrote another apiVersion than {api_version}, which it is configured for")
    status = answer.get("status")
    if not isinstance(status, Mapping):
        raise WrongCredentials("wrote no status")
    return _PluginResponse(_credentials(status), _expiry(_text(status, "expirationTimestamp")))


def _credentials(status: Mapping[str, Any]) -> Credentials:
    token, certificate, key = (_text(status, name) for name in ("token", "clientCertificateData", "clientKeyData"))
    if bool(certificate) != bool(key):
        raise WrongCredentials("wrote a certificate without its key, or a key without its certificate")
    if not (token or certificate):
        raise WrongCredentials("wrote neither a token nor a certificate with its key")
    return Credentials(
        token=checked_token(token) if token else None,
        client_certificate=checked_certificate(certificate.encode(), key.encode()) if certificate else None,
    )


def _expiry(text: str) -> datetime | None:
    try:
        return read_time(text) if text else None
    except InvalidTime:
        raise WrongCredentials("wrote an expirationTimestamp that is no time") from None


def _text(status: Mapping[str, Any], name: str) -> str:
    value = status.get(name)
    if value is not None and not isinstance(value, str):
        raise WrongCredentials(f"wrote a {name} that is no text")
    return value or ""
