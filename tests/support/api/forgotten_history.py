"""Versions and continue tokens that a server no longer knows."""

from __future__ import annotations

import base64
import json

import pytest

from orlop.kube import kinds
from support.api.api_under_test import Api

FIRST = "1"
NOT_YET = "this server still knows all it was ever told, and nobody can ask it to forget"


async def forgotten_version(api: Api) -> str:
    """Ours is made to forget, in process; as a process of its own it never had the first version, as it begins with the
    time. Of a foreign server, the first version is gone once it was compacted and restarted.
    """
    version = await api.version()
    await api.make(kinds.CONFIG_MAP, {"metadata": {"name": "newer"}})
    if api.served.forget():
        return version
    exactly = {"resourceVersion": FIRST, "resourceVersionMatch": "Exact"}
    if (await api.list(kinds.LEASE, **exactly)).status != 410:
        pytest.skip(NOT_YET)
    return FIRST


async def forgotten_token(api: Api, after: str) -> str:
    """Of leases, behind the one that is named."""
    names = await api.names(kinds.LEASE)
    page = (await api.list(kinds.LEASE, limit=str(names.index(after) + 1))).made
    if await forgotten_version(api) != FIRST:
        return page["metadata"]["continue"]
    return token_of_the_first_version(f"{api.namespace}/{after}\0" if api.can.is_orlops else f"{after}\0")


def token_of_the_first_version(start: str) -> str:
    """Others keep theirs for themselves; Kubernetes' own, and ours, have this form."""
    content = json.dumps({"v": "meta.k8s.io/v1", "rv": int(FIRST), "start": start}, separators=(",", ":"))
    return base64.urlsafe_b64encode(content.encode()).decode().rstrip("=")
