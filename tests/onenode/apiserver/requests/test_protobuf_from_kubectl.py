"""What the real kubectl sends in protobuf form, read by us, beside what it prints of the same object as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onenode.apiserver.requests.protobuf_bodies import MEDIA_TYPE, UnsupportedKind, decode_body
from support.processes.kubectl_recorder import Recorder, kubectl, recording


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[Recorder]:
    with recording(tmp_path) as recorder:
        yield recorder


ALWAYS_LISTS = {"rules"}


def as_we_read(value: Any) -> Any:
    """Go prints nulls and empty structs, both of which we leave out, except lists that are always there."""
    if isinstance(value, list):
        return [as_we_read(item) for item in value]
    if not isinstance(value, dict):
        return value
    members = {name: [] if member is None and name in ALWAYS_LISTS else member for name, member in value.items()}
    read = {name: as_we_read(member) for name, member in members.items()}
    return {name: member for name, member in read.items() if member is not None and member != {}}


CREATED = [
    "namespace team",
    "configmap settings --from-literal=a=b --from-literal=empty= --from-file=odd={bytes}",
    "secret generic keys --from-literal=user=me --from-file=odd={bytes}",
    "secret docker-registry pull --docker-server=r.example --docker-username=u --docker-password=p",
    "serviceaccount robot -n team",
    "role reader --verb=get,list --resource=pods,pods/log --resource-name=one",
    "clusterrole reader --verb=get --resource=pods",
    "clusterrole checker --verb=get --non-resource-url=/healthz",
    "clusterrole all --aggregation-rule=a=b",
    "rolebinding readers --role=reader --user=me --group=us --serviceaccount=team:robot",
    "clusterrolebinding readers --clusterrole=reader --user=me",
    "service clusterip web --tcp=80:8080",
    "service nodeport web --tcp=80 --node-port=30080",
    "service externalname web --external-name=e.example",
    "job once --image=i",
    "cronjob often --image=i --schedule=1,2",
    "quota small --hard=pods=2,requests.storage=1Gi --scopes=BestEffort",
    "poddisruptionbudget calm --selector=a=b --min-available=50%",
    "priorityclass high --value=1000 --global-default=false --description=d",
]


@pytest.mark.parametrize("command", CREATED)
def test_what_kubectl_creates_is_read_as_what_it_prints(command: str, recorder: Recorder, tmp_path: Path):
    odd = tmp_path / "odd"
    odd.write_bytes(b"\xff\xfe\0odd")
    arguments = ["create", *shlex.split(command.format(bytes=odd))]
    printed = kubectl(tmp_path, *arguments, "--dry-run=client", "-o", "json", f"--server={url(recorder)}")
    assert printed.returncode == 0, printed.stderr
    read = decode_body(recorder.body_of(*arguments))
    assert read == as_we_read(json.loads(printed.stdout))
    assert recorder.content_types == [MEDIA_TYPE]


def url(recorder: Recorder) -> str:
    return f"http://127.0.0.1:{recorder.server_port}"


ASKED = [
    (
        "create token sa --duration=1h --audience=a --bound-object-kind=Pod --bound-object-name=p --bound-object-uid=u",
        {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": ["a"],
                "expirationSeconds": 3600,
                "boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "u"},
            },
            "status": {"token": ""},
        },
    ),
    (
        "auth can-i get pods/log --namespace=team",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {
                "resourceAttributes": {
                    "namespace": "team",
                    "verb": "get",
                    "resource": "pods",
                    "name": "log",
                }
            },
            "status": {"allowed": False},
        },
    ),
    (
        "auth can-i --list",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectRulesReview",
            "spec": {"namespace": "default"},
            "status": {"resourceRules": [], "nonResourceRules": [], "incomplete": False},
        },
    ),
    ("auth whoami", {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}),
]


@pytest.mark.parametrize(("command", "expected"), ASKED)
def test_what_kubectl_asks_is_read(command: str, expected: dict[str, Any], recorder: Recorder):
    assert decode_body(recorder.body_of(*command.split())) == expected


def test_a_kind_of_kubectl_s_that_is_not_read_in_protobuf_form_is_named(recorder: Recorder):
    body = recorder.body_of("create", "ingress", "web", "--rule=e.example/=web:80")
    with pytest.raises(UnsupportedKind, match=r"networking\.k8s\.io/v1 Ingress is not read in protobuf form"):
        decode_body(body)
