"""Find the API server and our credentials: in kubeconfig files, or in the service account of the pod we run in.

The rules are kubectl's: a file named by a flag must exist; in a `KUBECONFIG` list the first file with an entry wins;
paths are relative to the folder of their file; without TLS no credentials are sent. Features of kubectl that we lack (a
proxy, auth-provider, interactive plugins) are refused, never ignored.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Secret
from orlop.kube.config.cluster_access import (
    ClientCertificate,
    ClusterAccess,
    Credentials,
    CredentialsProvider,
    FixedCredentials,
    Password,
)
from orlop.kube.config.credentials import (
    FileCredentials,
    Plugin,
    PluginCredentials,
    RunProgram,
    WrongCredentials,
    checked_certificate,
    checked_pem,
    checked_token,
)
from orlop.kube.config.kubeconfig_files import KubeconfigError, MergedConfig, NoKubeconfig, Section, read_configs

__all__ = ["Kubeconfig", "KubeconfigError"]

SERVICE_ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_VERSIONS: Final = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
IMPERSONATION: Final = (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid"))


class Kubeconfig:
    """Finds an API server; of the process it uses only `environment`."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        clock: Clock,
        run: RunProgram,
        service_account: Path = SERVICE_ACCOUNT_FOLDER,
    ) -> None:
        self._environment = environment
        self._clock = clock
        self._run = run
        self._service_account = service_account

    def find(self, path: str = "", context: str = "") -> ClusterAccess:
        """Read the file `path`; else those of `KUBECONFIG`; else ~/.kube/config; else the pod's service account."""
        if path:
            return self._access(read_configs([Path(path)]), context)
        if listed := [Path(part) for part in self._environment.get("KUBECONFIG", "").split(":") if part]:
            return self._access(read_configs(listed), context)
        try:
            return self._access(read_configs([self.home_file]), context)
        except NoKubeconfig:
            if context:
                raise
        if self._environment.get("KUBERNETES_SERVICE_HOST"):
            return self.in_cluster()
        raise NoKubeconfig(
            f"no API server is known: --kubeconfig and KUBECONFIG are not set, there is no file {self.home_file}, and "
            "this is no pod (KUBERNETES_SERVICE_HOST is not set)"
        )

    @property
    def home_file(self) -> Path:
        """The file that is read if nothing names another one."""
        return Path(self._environment.get("HOME") or "/") / ".kube" / "config"

    def in_cluster(self) -> ClusterAccess:
        """Use the service account of the pod we run in."""
        host, port = (self._environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise KubeconfigError("this is no pod: KUBERNETES_SERVICE_HOST or KUBERNETES_SERVICE_PORT is not set")
        folder = self._service_account
        _pod_credentials(folder / "token")  # A missing file is an error now, not at the first request.
        return ClusterAccess(
            server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
            credentials=FileCredentials(lambda: _pod_credentials(folder / "token"), self._clock),
            namespace=_pod_file(folder / "namespace").decode(errors="replace").strip() or "default",
            certificate_authority=_pod_authority(folder / "ca.crt"),
            origin=f"the service account in {folder}",
        )

    def _access(self, config: MergedConfig, context_name: str) -> ClusterAccess:
        context = _chosen_context(config, context_name)
        cluster = _referred(config.clusters, context, "cluster")
        user = _referred(config.users, context, "user") if context.text("user") else None
        if cluster is None:
            raise context.error("cluster", "is missing")
        server = _server(cluster)
        secure = server.startswith("https://")
        return ClusterAccess(
            server=server,
            credentials=self._credentials(user, cluster) if user and secure else FixedCredentials(),
            namespace=context.text("namespace") or "default",
            certificate_authority=_authority(cluster),
            insecure=cluster.flag("insecure-skip-tls-verify"),
            tls_server_name=cluster.text("tls-server-name") or None,
            headers=tuple(_impersonation(user)) if user else (),
            origin=f"{context.place.removesuffix('.context')} in {config.origin}",
        )

    def _credentials(self, user: Section, cluster: Section) -> CredentialsProvider:
        if user.values.get("auth-provider") is not None:
            raise user.error("auth-provider", "is not supported; use a credential plugin (exec) instead")
        credentials = _read_credentials(user)
        if credentials == Credentials() and (plugin := user.section("exec")) is not None:
            return PluginCredentials(_plugin(plugin, cluster), self._run, self._environment, self._clock)
        if any(user.text(name) for name in ("tokenFile", "client-certificate", "client-key")):
            return FileCredentials(lambda: _read_credentials(user), self._clock)
        return FixedCredentials(credentials)


# ---- the parts of a file ---------------------------------------------------------------------------------------------


def _chosen_context(config: MergedConfig, name: str) -> Section:
    there_are = f"there are {', '.join(config.contexts)}" if config.contexts else "there are none"
    chosen = name or config.current_context
    if not chosen:
        raise KubeconfigError(f"{config.origin}: current-context is not set, so a context must be named: {there_are}")
    if chosen not in config.contexts:
        raise KubeconfigError(f"{config.origin}: contexts has no entry named {chosen}: {there_are}")
    return config.contexts[chosen]


def _referred(entries: Mapping[str, Section], context: Section, what: str) -> Section | None:
    name = context.text(what)
    if not name:
        return None
    if name not in entries:
        raise context.error(what, f"names {name}, but {what}s has no entry of that name")
    return entries[name]


def _server(cluster: Section) -> str:
    if cluster.text("proxy-url"):
        raise cluster.error("proxy-url", "is not supported: Orlop speaks to API servers directly")
    server = cluster.text("server").strip()
    if not server:
        raise cluster.error("server", "is missing")
    if "://" not in server:
        server = f"{'https' if _wants_tls(cluster) else 'http'}://{server}"
    try:
        parts = urlsplit(server)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.username is not None or parts.query or parts.fragment:
        raise cluster.error("server", "is no address of an API server: one looks like https://10.0.0.1:6443")
    return parts.geturl().rstrip("/")


def _wants_tls(cluster: Section) -> bool:
    names = ("certificate-authority", "certificate-authority-data")
    return cluster.flag("insecure-skip-tls-verify") or any(cluster.text(name) for name in names)


def _authority(cluster: Section) -> bytes | None:
    content = cluster.file_or_data("certificate-authority")
    if content is None:
        return None
    if cluster.flag("insecure-skip-tls-verify"):
        raise cluster.error("insecure-skip-tls-verify", "is set, and so is a certificate-authority: choose one")
    with _naming(cluster, "certificate-authority"):
        return checked_pem(content, b"CERTIFICATE")


def _read_credentials(user: Section) -> Credentials:
    token, password = _token(user), _password(user)
    if token is not None and password is not None:
        raise user.error("username", "is set, and so is a token: choose one")
    return Credentials(token, _client_certificate(user), password)


def _token(user: Section) -> Secret[str] | None:
    """Return the token. One in a file wins over one inline, which may be old."""
    path = user.path("tokenFile")
    if path is not None:
        with _naming(user, "tokenFile"):
            return checked_token(user.read("tokenFile", path).decode(errors="replace"))
    with _naming(user, "token"):
        return checked_token(token) if (token := user.text("token")) else None


def _password(user: Section) -> Password | None:
    username, password = user.text("username"), user.text("password")
    return Password(username, Secret(password)) if username or password else None


def _client_certificate(user: Section) -> ClientCertificate | None:
    certificate, key = user.file_or_data("client-certificate"), user.file_or_data("client-key")
    if certificate is None and key is None:
        return None
    if certificate is None:
        raise user.error("client-certificate", "is missing: the client-key needs one")
    if key is None:
        raise user.error("client-key", "is missing: the client-certificate needs one")
    with _naming(user, "client-certificate or client-key"):
        return checked_certificate(certificate, key)


def _impersonation(user: Section) -> Iterator[tuple[str, str]]:
    if not user.text("as"):
        return
    for name, header in IMPERSONATION:
        if value := user.text(name):
            yield header, _header_value(user, name, value)
    for group in user.texts("as-groups"):
        yield "Impersonate-Group", _header_value(user, "as-groups", group)
    extra = user.section("as-user-extra")
    for key in extra.values if extra else ():
        for value in extra.texts(key) if extra else ():
            yield f"Impersonate-Extra-{_header_value(user, 'as-user-extra', key)}", _header_value(user, key, value)


def _header_value(user: Section, name: str, value: str) -> str:
    if not value.isprintable() or not value.isascii():
        raise user.error(name, "holds characters that no header can carry")
    return value


def _plugin(section: Section, cluster: Section) -> Plugin:
    command, version, mode = (section.text(name) for name in ("command", "apiVersion", "interactiveMode"))
    if not command:
        raise section.error("command", "is missing")
    if version not in EXEC_VERSIONS:
        raise section.error("apiVersion", f"is not supported; there are {' and '.join(EXEC_VERSIONS)}")
    if mode == "Always":
        raise section.error("interactiveMode", "is Always, but no user can answer here; use another plugin")
    if mode not in {"Never", "IfAvailable"} and (mode or version == EXEC_VERSIONS[0]):
        raise section.error("interactiveMode", "must be Never, IfAvailable or Always")
    return Plugin(
        command=str(section.path("command")) if "/" in command else command,
        arguments=section.texts("args"),
        environment={_variable(entry): entry.text("value") for entry in section.sections("env")},
        api_version=version,
        origin=f"{section.file} ({section.place})",
        install_hint=section.text("installHint"),
        cluster=_cluster_info(cluster) if section.flag("provideClusterInfo") else None,
    )


def _variable(entry: Section) -> str:
    name = entry.text("name")
    if not name or "=" in name or "\0" in name:
        raise entry.error("name", "is no name of an environment variable")
    return name


def _cluster_info(cluster: Section) -> dict[str, Any]:
    authority = _authority(cluster)
    extensions = {entry.text("name"): entry.values.get("extension") for entry in cluster.sections("extensions")}
    info = {
        "server": _server(cluster),
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(authority).decode() if authority else "",
        "config": extensions.get(EXEC_EXTENSION),
    }
    return {key: value for key, value in info.items() if value}


@contextlib.contextmanager
def _naming(section: Section, name: str) -> Iterator[None]:
    """Name this field in errors about credentials raised inside."""
    try:
        yield
    except WrongCredentials as error:
        raise section.error(name, str(error)) from None


# ---- what a pod finds ------------------------------------------------------------------------------------------------


def _pod_credentials(path: Path) -> Credentials:
    try:
        return Credentials(token=checked_token(_pod_file(path).decode(errors="replace")))
    except WrongCredentials as error:
        raise KubeconfigError(f"{path}: {error}") from None


def _pod_authority(path: Path) -> bytes:
    try:
        return checked_pem(_pod_file(path), b"CERTIFICATE")
    except WrongCredentials as error:
        raise KubeconfigError(f"{path}: {error}") from None


def _pod_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KubeconfigError(f"{path}: cannot be read: {error.strerror or error}") from None
