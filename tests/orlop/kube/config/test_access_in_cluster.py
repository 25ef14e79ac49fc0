"""What a pod finds of its own: the address in its environment, the token and the authority in its file system."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orlop.foundation.structured_log import Secret
from orlop.kube.config.kubeconfig import Kubeconfig, KubeconfigError
from orlop.testing.virtual_clock import VirtualClock

pytestmark = pytest.mark.virtual_time

CA = b"-----BEGIN CERTIFICATE-----\nQ0E=\n-----END CERTIFICATE-----\n"


async def no_program(argv: Any, env: Any, stdin: bytes) -> Any:
    raise AssertionError("no program was to be run")


def pod(folder: Path, **environment: str) -> Kubeconfig:
    return Kubeconfig(
        {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443", **environment},
        clock=VirtualClock(),
        run=no_program,
        service_account=folder,
    )


@pytest.fixture
def service_account(tmp_path: Path) -> Path:
    folder = tmp_path / "sa"
    folder.mkdir()
    (folder / "ca.crt").write_bytes(CA)
    (folder / "token").write_text("pod-token\n")
    (folder / "namespace").write_text("kube-system\n")
    return folder


async def test_a_pod_finds_its_service_account(service_account: Path):
    found = pod(service_account, HOME="/nowhere").find()
    assert (found.server, found.namespace) == ("https://10.96.0.1:443", "kube-system")
    assert found.certificate_authority == CA
    assert (await found.credentials.current()).authorization() == Secret("Bearer pod-token")
    assert pod(service_account, KUBERNETES_SERVICE_HOST="fd00::1").in_cluster().server == "https://[fd00::1]:443"


@pytest.mark.parametrize("missing", ["ca.crt", "token", "namespace"])
def test_a_file_missing_in_a_pod_is_named(service_account: Path, missing: str):
    (service_account / missing).unlink()
    with pytest.raises(KubeconfigError, match=f"/sa/{missing}: cannot be read: No such file"):
        pod(service_account).in_cluster()


@pytest.mark.parametrize(("name", "sentence"), [("ca.crt", "holds no certificate in PEM"), ("token", "holds no token")])
def test_an_empty_file_in_a_pod_is_named(service_account: Path, name: str, sentence: str):
    (service_account / name).write_bytes(b"\n")
    with pytest.raises(KubeconfigError, match=f"/sa/{name}: {sentence}"):
        pod(service_account).in_cluster()


def test_outside_a_pod_there_is_no_service_account():
    with pytest.raises(KubeconfigError, match="this is no pod"):
        Kubeconfig({}, clock=VirtualClock(), run=no_program).in_cluster()
