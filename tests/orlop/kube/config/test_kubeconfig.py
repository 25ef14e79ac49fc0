"""How an API server is reached: from files as kubectl reads them, or from a pod's own; what is wrong is named."""

from __future__ import annotations

import base64
import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orlop.foundation.structured_log import Secret
from orlop.kube.config.cluster_access import ANONYMOUS, Credentials
from orlop.kube.config.credentials import FileCredentials, PluginCredentials
from orlop.kube.config.kubeconfig import Kubeconfig, KubeconfigError
from orlop.testing.virtual_clock import VirtualClock
from support.random_tests import FEW

pytestmark = pytest.mark.virtual_time

CA = b"-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"
CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nTUU=\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n"
SECRET = "hunter2-hunter2"


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


CONFIG: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Config",
    "current-context": "dev",
    "contexts": [{"name": "dev", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443"}}],
    "users": [{"name": "u", "user": {"token": SECRET}}],
}


def config(*, cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **top: Any) -> dict[str, Any]:
    """The usual one with some parts exchanged."""
    made = copy.deepcopy(CONFIG) | top
    if cluster is not None:
        made["clusters"][0]["cluster"] = {"server": "https://10.0.0.1:6443"} | cluster
    if user is not None:
        made["users"][0]["user"] = user
    return made


async def no_program(argv: Any, env: Any, stdin: bytes) -> Any:
    raise AssertionError("no program was to be run")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def write(folder: Path, content: Any, name: str = "config") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
    return path


def reader(**environment: str) -> Kubeconfig:
    return Kubeconfig(environment, clock=VirtualClock(), run=no_program, service_account=Path("/nowhere"))


def access(folder: Path, content: Any, context: str = "") -> Any:
    return reader().find(str(write(folder, content)), context)


# ---- what is read ----------------------------------------------------------------------------------------------------


async def test_a_file_says_where_the_server_is_and_who_we_are(folder: Path):
    found = access(folder, config())
    assert (found.server, found.namespace, found.certificate_authority) == ("https://10.0.0.1:6443", "team", None)
    assert (found.insecure, found.tls_server_name, found.headers) == (False, None, ())
    assert await found.credentials.current() == Credentials(token=Secret(SECRET))
    assert found.origin == f"contexts[dev] in {folder / 'config'}"


async def test_certificates_and_keys_stand_inline_or_in_files_beside_the_config(folder: Path):
    write(folder, CA, "pki/ca.crt")
    write(folder, CERTIFICATE, "pki/me.crt")
    write(folder, KEY, "pki/me.key")
    by_file = access(
        folder,
        config(
            cluster={"certificate-authority": "pki/ca.crt"},
            user={"client-certificate": "pki/me.crt", "client-key": str(folder / "pki" / "me.key")},
        ),
    )
    inline = access(
        folder,
        config(
            cluster={"certificate-authority-data": encoded(CA)},
            user={"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY)},
        ),
    )
    for found in (by_file, inline):
        assert found.certificate_authority == CA
        shown = (await found.credentials.current()).client_certificate
        assert (shown.certificate, shown.key.reveal()) == (CERTIFICATE, KEY)


async def test_what_stands_inline_wins_over_a_file(folder: Path):
    found = access(folder, config(cluster={"certificate-authority": "gone", "certificate-authority-data": encoded(CA)}))
    assert found.certificate_authority == CA


async def test_a_token_file_wins_over_a_token(folder: Path):
    write(folder, b"  from-file\n", "token")
    found = access(folder, config(user={"token": SECRET, "tokenFile": "token"}))
    assert isinstance(found.credentials, FileCredentials)
    assert (await found.credentials.current()).token == Secret("from-file")


async def test_a_name_and_password_are_sent_as_such(folder: Path):
    found = access(folder, config(user={"username": "me", "password": SECRET}))
    header = (await found.credentials.current()).authorization()
    assert header == Secret("Basic " + encoded(f"me:{SECRET}".encode()))


async def test_without_tls_nothing_is_said_of_who_we_are(folder: Path):
    found = access(folder, config(cluster={"server": "http://10.0.0.1:8080"}))
    assert await found.credentials.current() == ANONYMOUS
    assert ANONYMOUS.authorization() is None


async def test_a_context_without_a_user_is_anonymous(folder: Path):
    found = access(folder, config(contexts=[{"name": "dev", "context": {"cluster": "c"}}]))
    assert await found.credentials.current() == ANONYMOUS
    assert found.namespace == "default"


SERVERS = [
    ({"server": "https://h:6443/"}, "https://h:6443"),
    ({"server": "HTTPS://h:6443/base/path/"}, "https://h:6443/base/path"),
    ({"server": "https://[::1]:6443"}, "https://[::1]:6443"),
    ({"server": "h:8080"}, "http://h:8080"),
    ({"server": "h:6443", "insecure-skip-tls-verify": True}, "https://h:6443"),
    ({"server": "h:6443", "certificate-authority-data": encoded(CA)}, "https://h:6443"),
]


@pytest.mark.parametrize(("cluster", "server"), SERVERS, ids=[server for _, server in SERVERS])
def test_the_servers_address_is_read_as_kubectl_does(folder: Path, cluster: dict[str, Any], server: str):
    assert access(folder, config(cluster=cluster)).server == server


def test_tls_can_be_told_another_name_or_to_look_away(folder: Path):
    found = access(folder, config(cluster={"tls-server-name": "kubernetes", "insecure-skip-tls-verify": True}))
    assert (found.tls_server_name, found.insecure) == ("kubernetes", True)


def test_whom_we_act_as_is_said_in_headers(folder: Path):
    user = {"token": "t", "as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"scopes": ["x", "y"]}}
    assert access(folder, config(user=user)).headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-scopes", "x"),
        ("Impersonate-Extra-scopes", "y"),
    )


def test_a_plugin_is_used_only_where_nothing_else_says_who_we_are(folder: Path):
    plugin = {"command": "get-token", "apiVersion": "client.authentication.k8s.io/v1beta1"}
    assert isinstance(access(folder, config(user={"exec": plugin})).credentials, PluginCredentials)
    assert not isinstance(access(folder, config(user={"exec": plugin, "token": "t"})).credentials, PluginCredentials)


def test_nothing_that_was_read_shows_a_secret(folder: Path):
    user = {"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(KEY), "token": SECRET}
    shown = repr(access(folder, config(user=user)))
    assert SECRET not in shown
    assert "aHVudGVyMg" not in shown


# ---- which file, which context ---------------------------------------------------------------------------------------


def test_another_context_can_be_chosen(folder: Path):
    contexts = [
        {"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"ns-{name}"}} for name in ("dev", "prod")
    ]
    assert access(folder, config(contexts=contexts)).namespace == "ns-dev"
    assert access(folder, config(contexts=contexts), "prod").namespace == "ns-prod"
    with pytest.raises(KubeconfigError, match="contexts has no entry named test: there are dev, prod"):
        access(folder, config(contexts=contexts), "test")


async def test_of_a_list_of_files_the_first_that_has_a_name_wins_whole(folder: Path):
    first = write(folder, {"users": [{"name": "u", "user": {"token": "first"}}], "current-context": ""}, "one/config")
    write(folder, CA, "two/ca.crt")
    second = write(folder, config(cluster={"certificate-authority": "ca.crt"}), "two/config")
    third = write(folder, config(user={"token": "third", "as": "jane"}, **{"current-context": "other"}), "three")
    found = reader(KUBECONFIG=f"{first}:{folder / 'missing'}::{second}:{third}:{first}").find()
    assert (await found.credentials.current()).token == Secret("first")
    assert found.headers == ()
    assert found.certificate_authority == CA
    assert found.origin == f"contexts[dev] in {first}, {second}, {third}"


def test_a_file_that_was_named_is_the_only_one_read_and_must_exist(folder: Path):
    other = write(folder, config(), "other")
    with pytest.raises(KubeconfigError, match=r"there is no kubeconfig file at .*/missing"):
        reader(KUBECONFIG=str(other)).find(str(folder / "missing"))


def test_a_list_of_which_nothing_exists_is_an_error_that_names_it(folder: Path):
    with pytest.raises(KubeconfigError, match=r"at .*/a, .*/b$"):
        reader(KUBECONFIG=f"{folder / 'a'}:{folder / 'b'}", HOME=str(folder)).find()


def test_else_the_file_in_the_home_folder_is_read(folder: Path):
    write(folder, config(), ".kube/config")
    assert reader(HOME=str(folder), KUBERNETES_SERVICE_HOST="10.96.0.1").find().namespace == "team"


def test_a_context_that_was_named_is_not_looked_for_in_a_pod(folder: Path):
    with pytest.raises(KubeconfigError, match=r"no kubeconfig file at .*/\.kube/config"):
        reader(HOME=str(folder), KUBERNETES_SERVICE_HOST="10.96.0.1").find(context="dev")


def test_where_there_is_nothing_at_all_everything_tried_is_named(folder: Path):
    tried = r"--kubeconfig and KUBECONFIG are not set, there is no file .*/config, and this is no pod"
    with pytest.raises(KubeconfigError, match=tried):
        reader(HOME=str(folder)).find()


# ---- what is wrong is named ------------------------------------------------------------------------------------------

PLUGIN = {"command": "p", "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
ENCRYPTED = b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nx\n-----END ENCRYPTED PRIVATE KEY-----\n"

WRONG: list[tuple[Any, str]] = [
    (b"a: [", "is no YAML (line 1, column 5)"),
    (b"\xff\xfe\x00", "is no YAML"),
    (b"token: hunter2-hunter2: x", "is no YAML (line 1, column 23)"),
    (b"[]", "must hold fields, not a list"),
    (b"text", "must hold fields, not a text"),
    ({"kind": "Pod"}, "kind must be Config: this is no kubeconfig file"),
    ({"apiVersion": "v2"}, "apiVersion must be v1"),
    ({"contexts": {}}, "contexts must be a list, not fields"),
    ({"contexts": ["x"]}, "contexts[0] must hold fields, not a text"),
    ({"users": [{"user": {}}]}, "users[0].name is missing"),
    ({"clusters": [{"name": "a"}, {"name": "a"}]}, "clusters has two entries named a"),
    (b"", "current-context is not set, so a context must be named: there are none"),
    (config(**{"current-context": ""}), "there are dev"),
    (config(**{"current-context": 7}), "current-context must be a text, not a number; put it in quotes"),
    (config(contexts=[{"name": "dev"}]), "contexts[dev].context.cluster is missing"),
    (config(users=[]), "contexts[dev].context.user names u, but users has no entry of that name"),
    (config(clusters=[]), "contexts[dev].context.cluster names c, but clusters has no entry of that name"),
    (config(cluster={"server": ""}), "clusters[c].cluster.server is missing"),
    (config(cluster={"server": "ftp://x"}), "clusters[c].cluster.server is no address of an API server"),
    (config(cluster={"server": "https://me:hunter2-hunter2@h"}), "server is no address"),
    (config(cluster={"server": "https://h:99999"}), "server is no address"),
    (config(cluster={"server": "https://"}), "server is no address"),
    (config(cluster={"server": "https://h?x=1"}), "server is no address"),
    (config(cluster={"proxy-url": "http://p"}), "clusters[c].cluster.proxy-url is not supported"),
    (config(cluster={"insecure-skip-tls-verify": "yes"}), "insecure-skip-tls-verify must be true or false, not a text"),
    (
        config(cluster={"insecure-skip-tls-verify": True, "certificate-authority-data": encoded(CA)}),
        "insecure-skip-tls-verify is set, and so is a certificate-authority: choose one",
    ),
    (config(cluster={"certificate-authority": "gone.crt"}), "gone.crt, which cannot be read: No such file"),
    (config(cluster={"certificate-authority": "a\0b"}), "certificate-authority names no file"),
    (config(cluster={"certificate-authority-data": "hunter2-hunter2!"}), "certificate-authority-data is no base64"),
    (
        config(cluster={"certificate-authority-data": encoded(b"hunter2-hunter2")}),
        "clusters[c].cluster.certificate-authority holds no certificate in PEM",
    ),
    (config(user={"token": 12345}), "users[u].user.token must be a text, not a number; put it in quotes"),
    (config(user={"token": "hunter2-hunter2\nX: y"}), "users[u].user.token holds no token"),
    (config(user={"token": "hunter2-hunter2é"}), "users[u].user.token holds no token"),
    (config(user={"tokenFile": "gone"}), "users[u].user.tokenFile names"),
    (config(user={"tokenFile": "."}), "which cannot be read: Is a directory"),
    (config(user={"token": "hunter2-hunter2", "username": "me"}), "username is set, and so is a token"),
    (config(user={"client-certificate-data": encoded(CERTIFICATE)}), "users[u].user.client-key is missing"),
    (config(user={"client-key-data": encoded(KEY)}), "users[u].user.client-certificate is missing"),
    (
        config(user={"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(b"hunter2-hunter2")}),
        "holds no private key in PEM",
    ),
    (
        config(user={"client-certificate-data": encoded(CERTIFICATE), "client-key-data": encoded(ENCRYPTED)}),
        "holds a private key with a password; use one without",
    ),
    (config(user={"auth-provider": {"name": "gcp"}}), "users[u].user.auth-provider is not supported"),
    (config(user={"token": "t", "as": "x", "as-groups": "a"}), "as-groups must be a list, not a text"),
    (config(user={"token": "t", "as": "x", "as-groups": [1]}), "as-groups must be a list of texts"),
    (config(user={"token": "t", "as": "x\ny"}), "users[u].user.as holds characters that no header can carry"),
    (config(user={"exec": "p"}), "users[u].user.exec must hold fields, not a text"),
    (config(user={"exec": PLUGIN | {"command": ""}}), "users[u].user.exec.command is missing"),
    (config(user={"exec": PLUGIN | {"apiVersion": "client.authentication.k8s.io/v1alpha1"}}), "exec.apiVersion is not"),
    (config(user={"exec": PLUGIN | {"interactiveMode": "Always"}}), "exec.interactiveMode is Always, but no user can"),
    (config(user={"exec": PLUGIN | {"interactiveMode": ""}}), "exec.interactiveMode must be Never, IfAvailable"),
    (config(user={"exec": PLUGIN | {"interactiveMode": "Maybe"}}), "exec.interactiveMode must be Never, IfAvailable"),
    (config(user={"exec": PLUGIN | {"env": [{"value": "x"}]}}), "exec.env[0].name is no name of an environment"),
    (config(user={"exec": PLUGIN | {"args": [1]}}), "exec.args must be a list of texts"),
]


@pytest.mark.parametrize(("content", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_wrong_is_named_with_its_file_and_field_and_without_its_value(folder: Path, content: Any, message: str):
    with pytest.raises(KubeconfigError) as caught:
        access(folder, content)
    assert str(caught.value).startswith(str(folder / "config"))
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_file_that_may_not_be_read_is_named(folder: Path):
    (folder / "config").mkdir()
    with pytest.raises(KubeconfigError, match="/config: cannot be read: Is a directory"):
        reader().find(str(folder / "config"))


ANY_YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["name", "context", "cluster", "user", "server", "exec", "command", "env", "token", "as", "extensions"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(part=st.sampled_from(["contexts", "clusters", "users", "current-context", "kind"]), value=ANY_YAML)
def test_any_file_is_read_or_refused_with_a_sentence(folder: Path, part: str, value: Any):
    try:
        access(folder, config(**{part: value}))
    except KubeconfigError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either way is right


@settings(FEW, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cluster=ANY_YAML, user=ANY_YAML)
def test_any_cluster_and_user_are_read_or_refused_with_a_sentence(folder: Path, cluster: Any, user: Any):
    clusters = [{"name": "c", "cluster": cluster if isinstance(cluster, dict) else {"server": cluster}}]
    users = [{"name": "u", "user": user if isinstance(user, dict) else {"exec": user}}]
    try:
        access(folder, config(clusters=clusters, users=users))
    except KubeconfigError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either way is right
