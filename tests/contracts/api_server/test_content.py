"""In which form one may send and receive."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from support.api.api_objects import config_map
from support.api.api_under_test import Api


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "*/*",
        "application/vnd.example, application/json",
        "application/json;q=0.9, */*",
        "",
        "application/json;as=Fancy;g=meta.k8s.io;v=v1, application/json",
        "application/json; charset=utf-8",
    ],
)
async def test_json_is_given_to_whoever_takes_it(api: Api, accept: str):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=accept)

    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["kind"] == "ConfigMap"


@pytest.mark.parametrize("accept", ["application/vnd.kubernetes.protobuf", "application/yaml"])
async def test_who_takes_one_of_kubernetes_other_forms_alone_is_answered(api: Api, accept: str):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=accept)

    assert answer.status == 200
    if api.can.is_orlops:
        assert (answer.headers["content-type"], answer.json["kind"]) == ("application/json", "ConfigMap")
    else:
        assert answer.headers["content-type"] == accept


@pytest.mark.parametrize("accept", ["text/plain", "image/png, text/html", "application/xml", "application/*"])
async def test_who_takes_nothing_we_have_is_told_so(api: Api, accept: str):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=accept)

    answer.says(406, "NotAcceptable", "406: Not Acceptable\n\nAvailable representations: application/json")
    assert answer.json["details"] == {}


async def test_answers_are_not_to_be_kept_by_caches(api: Api):
    if not api.can.listens:
        pytest.skip("in process there are no caches on the way")
    answer = await api.list(kinds.CONFIG_MAP)

    assert answer.headers["cache-control"] == "no-cache, private"


async def test_yaml_is_taken_by_kubernetes_and_refused_by_us(api: Api):
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n  a: '1'\n"
    answer = await api.ask("POST", api.path(kinds.CONFIG_MAP), body, content_type="application/yaml")

    if api.can.is_orlops:
        answer.says(415, "UnsupportedMediaType", "accepted media types include: application/json")
    else:
        assert answer.made["data"] == {"a": "1"}
