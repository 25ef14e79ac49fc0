"""Credentials that rotate in files, and those a plugin gives until they expire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import Secret
from orlop.kube.api_errors import CredentialsUnavailable
from orlop.kube.config.cluster_access import Credentials
from orlop.kube.config.credentials import Plugin, PluginCredentials, RunProgram, WrongCredentials, _read_answer
from orlop.kube.config.kubeconfig import Kubeconfig
from orlop.kube.objects import time_text
from orlop.testing.virtual_clock import VirtualClock
from support.random_tests import FEWER

V1 = "client.authentication.k8s.io/v1"
CERTIFICATE = "-----BEGIN CERTIFICATE-----\nTUU=\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN RSA PRIVATE KEY-----\naHVudGVyMg==\n-----END RSA PRIVATE KEY-----\n"


# ---- files -----------------------------------------------------------------------------------------------------------


def by_token_file(folder: Path, token: str) -> Any:
    (folder / "token").write_text(token)
    (folder / "config").write_text(
        """
        current-context: x
        contexts: [{name: x, context: {cluster: c, user: u}}]
        clusters: [{name: c, cluster: {server: "https://h"}}]
        users: [{name: u, user: {tokenFile: token}}]
        """
    )
    made = Kubeconfig({}, clock=VirtualClock(), run=None)  # type: ignore[arg-type]  # there is nothing to run
    return made.find(str(folder / "config")).credentials


@pytest.mark.virtual_time
async def test_a_token_that_rotates_is_read_again(tmp_path: Path):
    provider, clock = by_token_file(tmp_path, "one"), VirtualClock()
    assert (await provider.current()).token == Secret("one")
    (tmp_path / "token").write_text("two")
    assert (await provider.current()).token == Secret("one")
    await clock.sleep(10)
    assert (await provider.current()).token == Secret("two")


@pytest.mark.virtual_time
async def test_a_token_the_server_refused_is_read_again_at_once(tmp_path: Path):
    provider = by_token_file(tmp_path, "one")
    refused = await provider.current()
    (tmp_path / "token").write_text("two")
    await provider.renew(Credentials(token=Secret("an older one")))
    assert await provider.current() == refused
    await provider.renew(refused)
    assert (await provider.current()).token == Secret("two")


@pytest.mark.virtual_time
@pytest.mark.parametrize("harm", ["missing", "empty"])
async def test_while_the_file_is_being_exchanged_the_last_token_is_used(tmp_path: Path, harm: str):
    provider, clock = by_token_file(tmp_path, "one"), VirtualClock()
    await provider.current()
    (tmp_path / "token").unlink()
    if harm == "empty":
        (tmp_path / "token").write_text("\n")
    await clock.sleep(60)
    assert (await provider.current()).token == Secret("one")
    (tmp_path / "token").write_text("two")
    await clock.sleep(60)
    assert (await provider.current()).token == Secret("two")


@pytest.mark.virtual_time
async def test_a_file_that_vanished_before_its_first_use_is_told(tmp_path: Path):
    provider = by_token_file(tmp_path, "one")
    (tmp_path / "token").unlink()
    with pytest.raises(
        CredentialsUnavailable, match=r"users\[u\]\.user\.tokenFile names .*/token, which cannot be read"
    ):
        await provider.current()


# ---- plugins ---------------------------------------------------------------------------------------------------------


def answer(**status: Any) -> bytes:
    return json.dumps({"kind": "ExecCredential", "apiVersion": V1, "status": status}).encode()


class Programs:
    """Plays the program; `output` is what it writes next."""

    def __init__(self, output: bytes = answer(token="t-1"), code: int = 0, complaint: bytes = b"") -> None:
        self.output, self.code, self.complaint = output, code, complaint
        self.seconds = 1.0
        self.fails: OSError | None = None
        self.runs: list[tuple[tuple[str, ...], dict[str, str], bytes]] = []
        self.at_once = 0

    async def __call__(self, argv: Sequence[str], env: Mapping[str, str], stdin: bytes) -> tuple[int, bytes, bytes]:
        self.runs.append((tuple(argv), dict(env), stdin))
        self.at_once += 1
        assert self.at_once == 1, "two plugins run at once"
        try:
            await VirtualClock().sleep(self.seconds)
        finally:
            self.at_once -= 1
        if self.fails is not None:
            raise self.fails
        return self.code, self.output, self.complaint


PLUGIN = Plugin(
    command="get-token",
    arguments=("--region", "x"),
    environment={"PROFILE": "dev", "AWS_SECRET": "hunter2-hunter2"},
    api_version=V1,
    origin="/config (users[u].user.exec)",
)


def provider_of(programs: RunProgram, plugin: Plugin = PLUGIN) -> PluginCredentials:
    return PluginCredentials(plugin, programs, {"PATH": "/bin", "PROFILE": "old"}, VirtualClock())


@pytest.mark.virtual_time
async def test_a_plugin_is_told_what_is_wanted_and_its_token_is_used():
    programs = Programs()
    assert await provider_of(programs).current() == Credentials(token=Secret("t-1"))
    ((argv, env, stdin),) = programs.runs
    assert (argv, stdin) == (("get-token", "--region", "x"), b"")
    asked = json.loads(env.pop("KUBERNETES_EXEC_INFO"))
    assert asked == {"kind": "ExecCredential", "apiVersion": V1, "spec": {"interactive": False}}
    assert env == {"PATH": "/bin", "PROFILE": "dev", "AWS_SECRET": "hunter2-hunter2"}


@pytest.mark.virtual_time
async def test_a_plugin_may_give_a_certificate_with_its_key():
    programs = Programs(answer(clientCertificateData=CERTIFICATE, clientKeyData=KEY, token=None))
    shown = await provider_of(programs).current()
    assert shown.token is None
    assert shown.client_certificate is not None
    assert (shown.client_certificate.certificate, shown.client_certificate.key.reveal()) == (
        CERTIFICATE.encode(),
        KEY.encode(),
    )


@pytest.mark.virtual_time
async def test_a_plugin_is_asked_once_for_all_who_wait_and_not_again_while_its_answer_holds():
    programs = Programs()
    provider = provider_of(programs)
    assert len({shown.token.reveal() for shown in await asyncio.gather(*(provider.current() for _ in range(9)))}) == 1  # type: ignore[union-attr]
    await VirtualClock().sleep(1_000_000)
    await provider.current()
    assert len(programs.runs) == 1


@pytest.mark.virtual_time
async def test_a_plugin_is_asked_again_when_its_answer_has_expired():
    clock = VirtualClock()
    programs = Programs(answer(token="t-1", expirationTimestamp=time_text(clock.now() + timedelta(seconds=100))))
    provider = provider_of(programs)
    await provider.current()
    programs.output = answer(token="t-2")
    await clock.sleep(98)
    assert (await provider.current()).token == Secret("t-1")
    await clock.sleep(1)
    assert (await provider.current()).token == Secret("t-2")


@pytest.mark.virtual_time
async def test_a_plugin_is_asked_again_when_the_server_refused_its_answer_but_not_for_an_older_one():
    programs = Programs()
    provider = provider_of(programs)
    refused = await provider.current()
    programs.output = answer(token="t-2")
    await provider.renew(refused)
    assert (await provider.current()).token == Secret("t-2")
    await provider.renew(refused)
    await provider.current()
    assert len(programs.runs) == 2


@pytest.mark.virtual_time
async def test_who_stops_waiting_for_a_plugin_leaves_it_to_the_others():
    programs = Programs()
    provider = provider_of(programs)
    first, second = (asyncio.create_task(provider.current()) for _ in range(2))
    await VirtualClock().sleep(0.5)
    first.cancel()
    assert (await second).token == Secret("t-1")


@pytest.mark.virtual_time
async def test_a_plugin_that_fails_is_told_with_its_complaint_and_without_what_it_was_given():
    programs = Programs(b"hunter2-hunter2", 3, b"profile dev: wrong key hunter2-hunter2\n")
    with pytest.raises(CredentialsUnavailable) as caught:
        await provider_of(programs).current()
    assert str(caught.value) == (
        "the credential plugin get-token of /config (users[u].user.exec) ended with exit code 3: "
        "profile dev: wrong key ***"
    )
    programs.complaint, programs.code = b"", 1
    with pytest.raises(CredentialsUnavailable, match="ended with exit code 1 and no message"):
        await provider_of(programs).current()


@pytest.mark.virtual_time
async def test_a_plugin_that_is_not_there_is_told_with_the_hint_how_to_get_it():
    programs = Programs()
    programs.fails = FileNotFoundError(2, "No such file or directory")
    with pytest.raises(CredentialsUnavailable, match=r"cannot be run: No such file or directory; install it with x$"):
        await provider_of(programs, replace(PLUGIN, install_hint="install it with x")).current()


@pytest.mark.virtual_time
async def test_a_plugin_that_never_ends_is_not_waited_for():
    programs = Programs()
    programs.seconds = 1e9
    with pytest.raises(CredentialsUnavailable, match="did not end within 60 seconds"):
        await provider_of(programs).current()
    assert VirtualClock().elapsed() == 60


@pytest.mark.virtual_time
async def test_a_plugin_that_failed_is_asked_again_the_next_time():
    programs = Programs(code=1)
    provider = provider_of(programs)
    with pytest.raises(CredentialsUnavailable):
        await provider.current()
    programs.code = 0
    assert (await provider.current()).token == Secret("t-1")


WRONG_ANSWERS = [
    (b"", "wrote output that is no JSON"),
    (b"hunter2-hunter2", "wrote output that is no JSON"),
    (b"[]", "wrote output that is no ExecCredential"),
    (b'{"kind":"Pod"}', "wrote output that is no ExecCredential"),
    (
        answer(token="t").replace(b"/v1", b"/v1beta1"),
        "wrote another apiVersion than client.authentication.k8s.io/v1",
    ),
    (json.dumps({"kind": "ExecCredential", "apiVersion": V1}).encode(), "wrote no status"),
    (answer(), "wrote neither a token nor a certificate with its key"),
    (answer(clientCertificateData=CERTIFICATE), "wrote a certificate without its key"),
    (answer(clientKeyData=KEY), "a key without its certificate"),
    (answer(clientCertificateData="x", clientKeyData=KEY), "holds no certificate in PEM"),
    (answer(token=7), "wrote a token that is no text"),
    (answer(token="a b"), "holds no token"),
    (answer(token="t", expirationTimestamp="tomorrow"), "wrote an expirationTimestamp that is no time"),
]


@pytest.mark.virtual_time
@pytest.mark.parametrize(("output", "message"), WRONG_ANSWERS, ids=[message for _, message in WRONG_ANSWERS])
async def test_a_plugin_that_answers_wrongly_is_told_so_and_not_quoted(output: bytes, message: str):
    with pytest.raises(CredentialsUnavailable) as caught:
        await provider_of(Programs(output)).current()
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_nothing_a_plugin_was_given_is_shown():
    shown = repr(replace(PLUGIN, arguments=("--password", "hunter2-hunter2")))
    assert "hunter2" not in shown


ANY_JSON = st.recursive(
    st.none() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["kind", "apiVersion", "status", "token"]), inner),
    max_leaves=6,
)


@FEWER
@given(st.binary(max_size=30) | ANY_JSON.map(lambda value: json.dumps(value).encode()))
def test_any_answer_is_read_or_refused(output: bytes):
    try:
        _read_answer(output, V1)
    except WrongCredentials as error:
        assert str(error)  # noqa: PT017 - either way is right


# ---- what a plugin is told of the cluster ----------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_plugin_that_wants_to_know_the_cluster_is_told(tmp_path: Path):
    (tmp_path / "config").write_text(
        """
        current-context: x
        contexts: [{name: x, context: {cluster: c, user: u}}]
        clusters:
        - name: c
          cluster:
            server: https://h:6443
            tls-server-name: kubernetes
            insecure-skip-tls-verify: true
            extensions:
            - {name: other, extension: 1}
            - {name: client.authentication.k8s.io/exec, extension: {audience: a}}
        users:
        - name: u
          user:
            exec:
              apiVersion: client.authentication.k8s.io/v1
              command: bin/get-token
              interactiveMode: IfAvailable
              provideClusterInfo: true
              env: [{name: A, value: b}]
        """
    )
    programs = Programs()
    access = Kubeconfig({}, clock=VirtualClock(), run=programs).find(str(tmp_path / "config"))
    await access.credentials.current()
    ((argv, env, _),) = programs.runs
    assert argv == (str(tmp_path / "bin" / "get-token"),)
    assert env["A"] == "b"
    assert json.loads(env["KUBERNETES_EXEC_INFO"])["spec"] == {
        "interactive": False,
        "cluster": {
            "server": "https://h:6443",
            "tls-server-name": "kubernetes",
            "insecure-skip-tls-verify": True,
            "config": {"audience": "a"},
        },
    }
