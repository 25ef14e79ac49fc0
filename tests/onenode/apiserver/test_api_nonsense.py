"""Whatever is sent, the answer is one of Kubernetes', and nothing unforeseen happens inside."""

from __future__ import annotations

import asyncio
import json

from hypothesis import example, given
from hypothesis import strategies as st

from onenode.apiserver.access.rbac_rules import ADMIN
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import BUILT_IN
from support.api.api_servers import api_server
from support.random_tests import FEW

METHODS = st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", ""])
NAMES = st.sampled_from(["a", "default", "..", ".", "%2e%2e", "a%2Fb", "%00", "%ff", "", "A_", "x" * 300, "é", "%"])
PARTS = st.sampled_from(["", "status", "scale", "binding", "eviction", "token", "finalize", "log", "cake"])
KNOWN_PATHS = st.builds(
    lambda kind, namespace, name, part: "/".join(
        [kind.collection_path("NS" if kind.namespaced and namespace else None).replace("NS", namespace), name, part]
    ),
    st.sampled_from(BUILT_IN),
    st.sampled_from(["default", "no", "..", "kube-system", ""]),
    NAMES,
    PARTS,
)
PATHS = KNOWN_PATHS | KNOWN_PATHS.map(lambda path: path.rstrip("/")) | st.text(max_size=30).map(lambda text: "/" + text)
OPTION_NAMES = st.sampled_from(
    [
        *("limit", "continue", "resourceVersion", "resourceVersionMatch", "labelSelector", "fieldSelector", "dryRun"),
        *("fieldValidation", "fieldManager", "pretty", "includeObject", "gracePeriodSeconds", "propagationPolicy"),
        *("timeoutSeconds", "sendInitialEvents", "orphanDependents", "cake"),
    ]
)
OPTION_VALUES = st.sampled_from(
    ["", "0", "1", "-1", "All", "true", "Exact", "NotOlderThan", "x=y", "metadata.name=a", "(", "a in (b", "9" * 25]
) | st.text(max_size=8)
QUERIES = st.lists(st.tuples(OPTION_NAMES, OPTION_VALUES), max_size=3).map(tuple)
HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "accept": st.sampled_from(
            ["*/*", "text/html", "application/json;as=Table;v=v1;g=meta.k8s.io", ";;;", "application/json;as=;q=x"]
        ),
        "content-type": st.sampled_from(
            [
                *("application/json", "application/merge-patch+json", "application/json-patch+json"),
                *("application/strategic-merge-patch+json", "application/vnd.kubernetes.protobuf", "text/plain", "/"),
            ]
        ),
    },
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
FIELDS = st.sampled_from(
    [
        *("metadata", "name", "namespace", "labels", "spec", "status", "data", "finalizers", "kind", "apiVersion"),
        *("replicas", "resourceVersion", "uid", "generateName", "target", "preconditions", "op", "path", "value"),
        *("containers", "template", "$patch", "$setElementOrder/finalizers", "deleteOptions", "dryRun"),
    ]
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)
NAMED = st.dictionaries(FIELDS, VALUES, max_size=4).map(lambda value: {**value, "metadata": {"name": "a"}})
BODIES = (
    st.binary(max_size=30)
    | st.binary(max_size=30).map(lambda tail: b"k8s\0" + tail)
    | (VALUES | NAMED).map(lambda value: json.dumps(value).encode())
)
FORESEEN = ("resourceVersion should not be set",)


def judge(answer: object, request: HttpRequest) -> None:
    assert isinstance(answer, HttpResponse)
    if answer.headers["content-type"].startswith("text/plain"):
        assert answer.status == 404
        return
    body = json.loads(answer.body)
    if answer.is_error:
        assert (body["kind"], body["code"]) == ("Status", answer.status)
        assert answer.status < 500 or answer.status == 504 or is_foreseen(body["message"], request), body


def is_foreseen(message: str, request: HttpRequest) -> bool:
    """What Kubernetes itself calls a failure of the server: a strategic patch it cannot make sense of, for one."""
    strategic = "strategic" in request.headers.get("content-type", "")
    return strategic or any(words in message for words in FORESEEN)


async def send(requests: list[HttpRequest]) -> None:
    async with api_server() as server:
        await server.ask("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
        await server.ask("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "a"}})
        for request in requests:
            judge(await server.server.answer(request, ADMIN), request)
        assert server.told.entries == []


REQUESTS = st.builds(HttpRequest, METHODS, PATHS, QUERIES, HEADERS, BODIES)


@FEW
@given(st.lists(REQUESTS, min_size=1, max_size=8))
@example([HttpRequest("PATCH", "/api/v1/namespaces/default/configmaps/a", (), {}, b"null")])
def test_nonsense_is_answered(requests: list[HttpRequest]):
    patient = [request for request in requests if not waits(request)]
    asyncio.run(send(patient))


def waits(request: HttpRequest) -> bool:
    """A version to come is waited for three seconds, which is tested elsewhere."""
    return any(name == "resourceVersion" and len(value) < 19 and value.isdigit() for name, value in request.query)
