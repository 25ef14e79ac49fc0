"""What requests are counted under: verbs and resources that are served, whatever a client writes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.edge.request_metrics import labels_of
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import BUILT_IN

VERBS = {"GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE", "DELETECOLLECTION", "OTHER"}
PARTS = st.sampled_from(
    ["api", "apis", "v1", "namespaces", "pods", "storage.k8s.io", "csinodes", "", "x", "%2e", "status"]
)

COUNTED = [
    ("GET", "/api/v1/namespaces/default/pods/p", ("GET", "pods")),
    ("GET", "/api/v1/namespaces/default/pods", ("LIST", "pods")),
    ("GET", "/api/v1/pods", ("LIST", "pods")),
    ("GET", "/api/v1/namespaces", ("LIST", "namespaces")),
    ("GET", "/api/v1/namespaces/pods", ("GET", "namespaces")),
    ("PUT", "/api/v1/namespaces/x/finalize", ("PUT", "namespaces")),
    ("PATCH", "/api/v1/namespaces/x/pods/p/status", ("PATCH", "pods")),
    ("DELETE", "/apis/storage.k8s.io/v1/csinodes/n", ("DELETE", "csinodes")),
    ("DELETE", "/apis/storage.k8s.io/v1/csinodes", ("DELETECOLLECTION", "csinodes")),
    ("GET", "/version", ("GET", "")),
    ("TRACE", "/api/v1/pods", ("OTHER", "pods")),
]


@pytest.mark.parametrize(("method", "path", "labels"), COUNTED, ids=[f"{method} {path}" for method, path, _ in COUNTED])
def test_a_request_is_counted_by_what_it_asks_for(method: str, path: str, labels: tuple[str, str]):
    assert labels_of(HttpRequest(method, path)) == labels


def test_a_watch_is_a_verb_of_its_own():
    assert labels_of(HttpRequest("GET", "/api/v1/pods", (("watch", "true"),))) == ("WATCH", "pods")
    assert labels_of(HttpRequest("GET", "/api/v1/pods", (("watch", "0"),))) == ("LIST", "pods")


@given(st.text(), st.lists(PARTS | st.text()).map("/".join))
def test_nothing_a_client_writes_becomes_a_label(method: str, path: str):
    verb, resource = labels_of(HttpRequest(method, f"/{path}"))

    assert verb in VERBS
    assert resource in {"", *(kind.plural for kind in BUILT_IN)}
