"""What a request is about, told from its method and path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.requests.request_paths import PlainPath, ResourcePath, read_path, verb_of
from orlop.kube.kinds import BUILT_IN


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/api/v1/pods", ResourcePath("", "v1", "pods")),
        ("/api/v1/pods/", ResourcePath("", "v1", "pods")),
        ("/api/v1/namespaces/a/pods", ResourcePath("", "v1", "pods", "a")),
        ("/api/v1/namespaces/a/pods/p", ResourcePath("", "v1", "pods", "a", "p")),
        ("/api/v1/namespaces/a/pods/p/log", ResourcePath("", "v1", "pods", "a", "p", "log")),
        ("/api/v1/namespaces/a/pods/p/proxy/x/y", ResourcePath("", "v1", "pods", "a", "p", "proxy", ("x", "y"))),
        ("/api/v1/namespaces", ResourcePath("", "v1", "namespaces")),
        ("/api/v1/namespaces/a", ResourcePath("", "v1", "namespaces", "", "a")),
        ("/api/v1/namespaces/a/status", ResourcePath("", "v1", "namespaces", "", "a", "status")),
        ("/api/v1/namespaces/a/finalize", ResourcePath("", "v1", "namespaces", "", "a", "finalize")),
        (
            "/apis/apps/v1/namespaces/a/deployments/d/scale",
            ResourcePath("apps", "v1", "deployments", "a", "d", "scale"),
        ),
        ("/apis/storage.k8s.io/v1/csinodes/n", ResourcePath("storage.k8s.io", "v1", "csinodes", "", "n")),
        ("/apis/rbac/v1/clusterroles/system%3Anode", ResourcePath("rbac", "v1", "clusterroles", "", "system:node")),
        ("/api/v1/namespaces/a/pods/x%2Fy", ResourcePath("", "v1", "pods", "a", "x", "y")),
        ("/api/v1/namespaces/a/pods/..", ResourcePath("", "v1", "pods", "a", "..")),
        ("/", PlainPath("/")),
        ("/api", PlainPath("/api")),
        ("/apis/", PlainPath("/apis")),
        ("/api/v1", PlainPath("/api/v1")),
        ("/apis/apps", PlainPath("/apis/apps")),
        ("/apis/apps/v1", PlainPath("/apis/apps/v1")),
        ("/api/v1//pods", PlainPath("/api/v1//pods")),
        ("/version", PlainPath("/version")),
        ("/openapi/v3/api/v1", PlainPath("/openapi/v3/api/v1")),
    ],
)
def test_a_path_means(path: str, meant: object):
    assert read_path(path) == meant


def test_every_path_that_a_client_makes_is_understood():
    for kind in BUILT_IN:
        namespace = "n" if kind.namespaced else None
        assert read_path(kind.collection_path(namespace)) == ResourcePath(
            kind.group, kind.version, kind.plural, namespace or ""
        )
        for part in ("", *(one.name for one in kind.subresources)):
            found = read_path(kind.object_path(namespace, "o", part))
            assert found == ResourcePath(kind.group, kind.version, kind.plural, namespace or "", "o", part)


@given(st.text())
def test_any_text_is_some_path(text: str):
    path = read_path(text)
    assert isinstance(path, PlainPath | ResourcePath)
    if isinstance(path, ResourcePath):
        assert path.resource
        assert "/" not in path.name


@pytest.mark.parametrize(
    ("method", "path", "watch", "verb"),
    [
        ("GET", "/api/v1/pods", False, "list"),
        ("GET", "/api/v1/pods", True, "watch"),
        ("GET", "/api/v1/namespaces/a/pods/p", True, "get"),
        ("POST", "/api/v1/namespaces/a/pods", False, "create"),
        ("PUT", "/api/v1/namespaces/a/pods/p", False, "update"),
        ("PATCH", "/api/v1/namespaces/a/pods/p", False, "patch"),
        ("DELETE", "/api/v1/namespaces/a/pods/p", False, "delete"),
        ("DELETE", "/api/v1/namespaces/a/pods", False, "deletecollection"),
        ("TRACE", "/api/v1/pods", False, None),
    ],
)
def test_the_verb_of_a_method(method: str, path: str, watch: bool, verb: str | None):  # noqa: FBT001
    meant = read_path(path)
    assert isinstance(meant, ResourcePath)
    assert verb_of(method, meant, watch=watch) == verb


def test_access_to_a_namespace_is_decided_in_that_namespace():
    path = read_path("/api/v1/namespaces/a")
    assert isinstance(path, ResourcePath)
    assert path.scope == "a"
