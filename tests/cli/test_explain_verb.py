"""`orlop explain` as people type it, as far as it gets without a cluster."""

from __future__ import annotations

import json
import time
from pathlib import Path

from support.orlop_process import run

CREDENTIAL = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "kind": "ExecCredential",
    "status": {"token": "t"},
}
A_PERSON_S_PATIENCE = 20.0
"""Seconds; ten attempts would take more than thirty."""


def kubeconfig(folder: Path, **plugin: object) -> str:
    """With a credential plugin, as those of most clouds have one."""
    exec_ = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "IfAvailable", **plugin}
    path = folder / "config"
    path.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"exec": exec_}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )
    return f"--kubeconfig={path}"


def test_a_credential_plugin_that_is_missing_is_told_with_how_to_get_it(tmp_path: Path):
    config = kubeconfig(tmp_path, command="no-such-plugin", installHint="get it from the cloud")
    ended = run("explain", "volumeattachment", "va1", config)
    assert ended.returncode == 1
    assert "the credential plugin no-such-plugin of" in ended.stderr
    assert "cannot be run: No such file or directory; get it from the cloud" in ended.stderr


def test_a_credential_plugin_that_fails_is_told_with_its_complaint(tmp_path: Path):
    config = kubeconfig(tmp_path, command="/bin/sh", args=["-c", "echo please log in >&2; exit 7"])
    ended = run("explain", "volumeattachment", "va1", config)
    assert ended.returncode == 1
    assert "ended with exit code 7: please log in" in ended.stderr


def test_a_name_that_can_be_none_is_refused_with_a_sentence(tmp_path: Path):
    ended = run("explain", "volumeattachment", "some/where", kubeconfig(tmp_path, command="no-such-plugin"))
    assert ended.returncode == 2
    assert "'some/where' cannot be a name" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_name_may_be_written_as_kubectl_prints_it(tmp_path: Path):
    config = kubeconfig(tmp_path, command="no-such-plugin")
    ended = run("explain", "volumeattachment", "volumeattachment.storage.k8s.io/va1", config)
    assert "cannot be a name" not in ended.stderr
    assert "the credential plugin no-such-plugin" in ended.stderr  # so far it got: to the API server


def test_the_folder_of_an_orlop_up_stands_for_its_kubeconfig(tmp_path: Path):
    ended = run("explain", "volumeattachment", "va1", f"--state={tmp_path}")
    assert ended.returncode == 1
    assert f"there is no kubeconfig file at {tmp_path}/kubeconfig" in ended.stderr


def test_a_folder_and_a_kubeconfig_are_too_much(tmp_path: Path):
    ended = run("explain", "volumeattachment", "va1", f"--state={tmp_path}", "--kubeconfig=/other")
    assert ended.returncode == 2
    assert "give one of them" in ended.stderr


def test_that_nobody_answers_is_told_within_seconds(tmp_path: Path):
    token = f"echo '{json.dumps(CREDENTIAL)}'"
    began = time.monotonic()
    ended = run("explain", "volumeattachment", "va1", kubeconfig(tmp_path, command="/bin/sh", args=["-c", token]))
    assert ended.returncode == 1
    assert "127.0.0.1:1" in ended.stderr
    assert time.monotonic() - began < A_PERSON_S_PATIENCE
