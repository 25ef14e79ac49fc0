"""What the server says it serves: the documents of discovery, plain and aggregated, made from the kinds. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from orlop.kube.kinds import Kind, Subresource

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""The media type of the aggregated form; kubectl takes the answer for the plain form unless it repeats this."""

Document = dict[str, Any]


def core_versions(address: str) -> Document:
    """Of `/api`."""
    where = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": where}


def group_list(kinds: Sequence[Kind]) -> Document:
    """Of `/apis`."""
    return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(kinds, name) for name in _groups(kinds)]}


def group(kinds: Sequence[Kind], name: str) -> Document | None:
    """Of `/apis/GROUP`."""
    if name not in _groups(kinds):
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(kinds, name)}


def resource_list(kinds: Sequence[Kind], group_name: str, version: str) -> Document | None:
    """Of `/api/v1` and `/apis/GROUP/VERSION`."""
    mine = _of(kinds, group_name, version)
    if not mine:
        return None
    resources = [entry for kind in mine for entry in _resources(kind)]
    group_version = mine[0].api_version
    # The list of the core group does not say its version, in Kubernetes as here.
    version_of_list = {"apiVersion": "v1"} if group_name else {}
    return {"kind": "APIResourceList", **version_of_list, "groupVersion": group_version, "resources": resources}


def aggregated(kinds: Sequence[Kind], *, core: bool) -> Document:
    """All of `/api`, or all of `/apis`, at once."""
    names = [""] if core else _groups(kinds)
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [_aggregated_group(kinds, name) for name in names],
    }


def _groups(kinds: Iterable[Kind]) -> list[str]:
    """In the order in which the kinds name them; the core group has no name and is not among them."""
    return list(dict.fromkeys(kind.group for kind in kinds if kind.group))


def _versions(kinds: Iterable[Kind], group_name: str) -> list[str]:
    return list(dict.fromkeys(kind.version for kind in kinds if kind.group == group_name))


def _of(kinds: Iterable[Kind], group_name: str, version: str) -> list[Kind]:
    return [kind for kind in kinds if (kind.group, kind.version) == (group_name, version)]


def _group(kinds: Sequence[Kind], name: str) -> Document:
    versions = [{"groupVersion": f"{name}/{version}", "version": version} for version in _versions(kinds, name)]
    return {"name": name, "versions": versions, "preferredVersion": versions[0]}


def _resources(kind: Kind) -> Iterable[Document]:
    resource: Document = {
        "name": kind.plural,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        resource["shortNames"] = list(kind.short_names)
    if kind.categories:
        resource["categories"] = list(kind.categories)
    yield resource
    for part in kind.subresources:
        yield _subresource(kind, part)


def _subresource(kind: Kind, part: Subresource) -> Document:
    entry: Document = {
        "name": f"{kind.plural}/{part.name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": part.kind or kind.kind,
        "verbs": list(part.verbs),
    }
    if part.group is not None:
        entry |= {"group": part.group, "version": part.version}
    return entry


def _aggregated_group(kinds: Sequence[Kind], name: str) -> Document:
    versions = [
        {
            "version": version,
            "resources": [_aggregated_resource(kind) for kind in _of(kinds, name, version)],
            "freshness": "Current",
        }
        for version in _versions(kinds, name)
    ]
    return {"metadata": {"name": name} if name else {}, "versions": versions}


def _aggregated_resource(kind: Kind) -> Document:
    entry: Document = {
        "resource": kind.plural,
        # Empty means the group and version of the parent.
        "responseKind": {"group": "", "version": "", "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    if kind.subresources:
        entry["subresources"] = [_aggregated_subresource(kind, part) for part in kind.subresources]
    return entry


def _aggregated_subresource(kind: Kind, part: Subresource) -> Document:
    answered = {"group": part.group or "", "version": part.version, "kind": part.kind or kind.kind}
    return {"subresource": part.name, "responseKind": answered, "verbs": list(part.verbs)}
