"""Kubeconfigs of service accounts: a process that uses one may do what the roles of deploy/ allow, and no more."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.processes.kubectl_commands import Kubectl

NAMESPACE = "orlop-system"


def account_token(kubectl: Kubectl, account: str) -> str:
    return kubectl.ok("-n", NAMESPACE, "create", "token", account).strip()


def limited_kubeconfig(kubectl: Kubectl, folder: Path, *credentials: str) -> Path:
    """Write a kubeconfig of the same server with these credentials, such as `--token=…`, and the default NAMESPACE."""
    path = folder / "limited"
    shutil.copy(kubectl.kubeconfig, path)
    limited = Kubectl(path, kubectl.home)
    limited.ok("config", "set-credentials", "limited", *credentials)
    limited.ok("config", "set-context", "--current", "--user=limited", f"--namespace={NAMESPACE}")
    return path


@contextmanager
def also_permitted(kubectl: Kubectl, roles: Path) -> Iterator[None]:
    """Apply a file of optional roles, for as long as the block runs."""
    kubectl.ok("apply", "-f", str(roles))
    yield
    kubectl.ok("delete", "-f", str(roles))
