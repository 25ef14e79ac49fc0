"""Service accounts' tokens: asked for, shown, reviewed, refused."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from orlop.kube import kinds
from support.api.admission import enforce, is_denied, rule, validation
from support.api.api_objects import account, allow, binding, named, pod, role
from support.api.api_under_test import Answer, Api
from support.api.custom_resources import defined, disk
from support.waiting import eventually_answered


def claims(token: str) -> tuple[dict, dict]:
    header, payload, _ = token.split(".")
    head, body = (json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))) for part in (header, payload))
    return head, body


async def ask(api: Api, name: str = "robot", **spec: object) -> Answer:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return await api.ask("POST", api.path(kinds.SERVICE_ACCOUNT, name, "token"), body)


async def robot(api: Api) -> dict:
    return await api.make(kinds.SERVICE_ACCOUNT, named("robot"))


async def test_a_token_says_whose_it_is_and_how_long_it_lasts(api: Api):
    made = await robot(api)
    answer = await ask(api)

    assert answer.status == 201
    assert (answer.json["kind"], answer.json["spec"]["expirationSeconds"]) == ("TokenRequest", 3600)
    head, told = claims(answer.json["status"]["token"])
    assert head["alg"] in {"RS256", "ES256"}
    assert head["kid"]
    assert told["sub"] == f"system:serviceaccount:{api.namespace}:robot"
    assert told["kubernetes.io"] == {
        "namespace": api.namespace,
        "serviceaccount": {"name": "robot", "uid": made["metadata"]["uid"]},
    }
    assert told["aud"] == answer.json["spec"]["audiences"]
    assert told["exp"] - told["iat"] == 3600
    assert told["nbf"] == told["iat"]
    assert re.fullmatch(r"[0-9a-f-]{36}", told["jti"])
    until = datetime.strptime(answer.json["status"]["expirationTimestamp"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert abs(until.timestamp() - told["exp"]) <= 1


async def test_a_token_may_be_for_others_and_for_longer(api: Api):
    await robot(api)
    answer = await ask(api, audiences=["vault"], expirationSeconds=7200)

    _, told = claims(answer.made["status"]["token"])
    assert told["aud"] == ["vault"]
    assert told["exp"] - told["iat"] == 7200


@pytest.mark.parametrize(("seconds", "field"), [(599, "spec.expirationSeconds"), (2**32 + 1, "spec.expirationSeconds")])
async def test_a_token_lasts_neither_too_short_nor_too_long(api: Api, seconds: int, field: str):
    await robot(api)

    (await ask(api, expirationSeconds=seconds)).is_invalid(("FieldValueInvalid", field))


async def test_an_account_that_is_not_there_has_no_token(api: Api):
    (await ask(api, "ghost")).is_refused(
        404, "NotFound", 'serviceaccounts "ghost" not found', {"name": "ghost", "kind": "serviceaccounts"}
    )


async def a_pod(api: Api) -> dict:
    return await api.make(kinds.POD, pod(serviceAccountName="robot", automountServiceAccountToken=False))


async def test_a_token_bound_to_a_pod_names_it(api: Api):
    await robot(api)
    uid = (await a_pod(api))["metadata"]["uid"]
    answer = await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid})

    _, told = claims(answer.made["status"]["token"])
    assert told["kubernetes.io"]["pod"] == {"name": "p", "uid": uid}


async def test_a_token_for_another_pod_of_that_name_is_a_conflict(api: Api):
    await robot(api)
    await a_pod(api)
    answer = await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": "other"})

    answer.is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on Pod "p": the UID in the bound object reference (other) does not match the '
        "UID in record. The object might have been deleted and then recreated",
        {"name": "p", "kind": "Pod"},
    )


async def test_a_token_for_a_pod_that_is_not_there_is_not_found(api: Api):
    await robot(api)
    answer = await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "ghost"})

    answer.is_refused(404, "NotFound", 'pods "ghost" not found', {"name": "ghost", "kind": "pods"})


async def review(api: Api, token: str, *audiences: str) -> dict:
    spec = {"token": token} | ({"audiences": list(audiences)} if audiences else {})
    answer = await api.create(kinds.TOKEN_REVIEW, {"spec": spec})
    assert answer.status == 201, answer.text
    return answer.json["status"]


async def test_a_good_token_is_reviewed_with_its_user(api: Api):
    made = await robot(api)
    token = (await ask(api)).made["status"]["token"]
    status = await review(api, token)

    assert status["authenticated"] is True
    user = status["user"]
    assert user["username"] == f"system:serviceaccount:{api.namespace}:robot"
    assert user["uid"] == made["metadata"]["uid"]
    assert sorted(user["groups"]) == sorted(
        ["system:serviceaccounts", f"system:serviceaccounts:{api.namespace}", "system:authenticated"]
    )
    _, told = claims(token)
    assert user["extra"] == {"authentication.kubernetes.io/credential-id": [f"JTI={told['jti']}"]}
    assert status["audiences"] == told["aud"]


async def test_a_pods_token_is_reviewed_with_the_pod(api: Api):
    await robot(api)
    uid = (await a_pod(api))["metadata"]["uid"]
    token = (await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid})).made
    extra = (await review(api, token["status"]["token"]))["user"]["extra"]

    assert extra["authentication.kubernetes.io/pod-name"] == ["p"]
    assert extra["authentication.kubernetes.io/pod-uid"] == [uid]


EXTRA = "authentication.kubernetes.io/"


async def test_a_pods_token_names_the_node_of_the_pod(api: Api):
    await robot(api)
    node = api.unique("n")
    uid = (await api.make(kinds.NODE, named(node)))["metadata"]["uid"]
    await api.make(kinds.POD, pod(serviceAccountName="robot", automountServiceAccountToken=False, nodeName=node))
    token = (await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})).made["status"]["token"]

    _, told = claims(token)
    extra = (await review(api, token))["user"]["extra"]
    assert told["kubernetes.io"]["node"] == {"name": node, "uid": uid}
    assert (extra[f"{EXTRA}node-name"], extra[f"{EXTRA}node-uid"]) == ([node], [uid])
    assert extra[f"{EXTRA}pod-name"] == ["p"]
    assert extra[f"{EXTRA}credential-id"] == [f"JTI={told['jti']}"]


async def test_a_pods_token_names_a_node_that_is_not_there_without_its_uid(api: Api):
    await robot(api)
    await api.make(kinds.POD, pod(serviceAccountName="robot", automountServiceAccountToken=False, nodeName="ghost"))
    token = (await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})).made["status"]["token"]

    extra = (await review(api, token))["user"]["extra"]
    assert extra[f"{EXTRA}node-name"] == ["ghost"]
    assert f"{EXTRA}node-uid" not in extra


async def test_the_token_of_a_pod_without_a_node_names_none(api: Api):
    await robot(api)
    await a_pod(api)
    token = (await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p"})).made["status"]["token"]

    extra = (await review(api, token))["user"]["extra"]
    assert not [key for key in extra if key.startswith(f"{EXTRA}node")]


async def test_a_token_bound_to_a_node_names_it_and_ends_with_it(api: Api):
    await robot(api)
    node = api.unique("n")
    uid = (await api.make(kinds.NODE, named(node)))["metadata"]["uid"]
    token = (await ask(api, boundObjectRef={"kind": "Node", "apiVersion": "v1", "name": node, "uid": uid})).made
    extra = (await review(api, token["status"]["token"]))["user"]["extra"]

    await api.delete(kinds.NODE, node)

    assert (extra[f"{EXTRA}node-name"], extra[f"{EXTRA}node-uid"]) == ([node], [uid])
    assert await eventually_refused(api, token["status"]["token"])


async def test_a_token_for_others_is_not_for_us(api: Api):
    await robot(api)
    token = (await ask(api, audiences=["vault"])).made["status"]["token"]

    assert (await review(api, token)).get("authenticated", False) is False
    assert (await review(api, token, "vault"))["audiences"] == ["vault"]


@pytest.mark.parametrize("token", ["nonsense", "a.b.c"])
async def test_nonsense_is_reviewed_as_not_authenticated(api: Api, token: str):
    status = await review(api, token)

    assert status.get("authenticated", False) is False
    assert "user" not in status or status["user"] == {}


async def test_a_token_with_another_signature_is_not_authenticated(api: Api):
    await robot(api)
    token = (await ask(api)).made["status"]["token"]
    head, body, signature = token.split(".")
    changed = "A" * 10 + signature[10:]

    assert (await review(api, f"{head}.{body}.{changed}")).get("authenticated", False) is False


async def test_a_token_ends_with_its_account(api: Api):
    await robot(api)
    token = (await ask(api)).made["status"]["token"]
    await api.delete(kinds.SERVICE_ACCOUNT, "robot")

    assert await eventually_refused(api, token)


async def test_a_token_ends_with_its_pod(api: Api):
    await robot(api)
    uid = (await a_pod(api))["metadata"]["uid"]
    token = (await ask(api, boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid})).made
    await api.delete(kinds.POD, "p", {"gracePeriodSeconds": 0})

    assert await eventually_refused(api, token["status"]["token"])


async def eventually_refused(api: Api, token: str) -> bool:
    """A server with caches may take some seconds."""

    async def is_refused() -> bool:
        return not (await review(api, token)).get("authenticated", False)

    return await eventually_answered(is_refused)


async def test_a_token_opens_the_door(api: Api):
    if not api.can.authenticates:
        pytest.skip("this connection means admin, whatever is shown")
    await robot(api)
    await api.make(kinds.ROLE, role("r", allow("list", "configmaps")))
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", account("robot", api.namespace)))
    bearer = api.bearing((await ask(api)).made["status"]["token"])

    async def is_let_in() -> bool:
        return (await bearer.list(kinds.CONFIG_MAP)).status == 200

    assert await eventually_answered(is_let_in)
    answer = await bearer.list(kinds.SECRET)
    who = f"system:serviceaccount:{api.namespace}:robot"
    assert f'User "{who}" cannot list resource "secrets"' in answer.json["message"]


@pytest.mark.parametrize("token", ["nonsense", "a.b.c"])
async def test_a_bad_token_does_not(api: Api, token: str):
    if not api.can.authenticates:
        pytest.skip("this connection means admin, whatever is shown")
    answer = await api.bearing(token).list(kinds.CONFIG_MAP)

    answer.is_refused(401, "Unauthorized", "Unauthorized")


async def test_impersonation_needs_a_user_and_the_right(api: Api):
    if not api.can.authenticates:
        pytest.skip("impersonation is decided at the door, which a caller in process does not pass")
    await robot(api)
    bearer = api.bearing((await ask(api)).made["status"]["token"])
    answer = await bearer.list(kinds.CONFIG_MAP, headers={"impersonate-user": "boss"})

    answer.says(403, "Forbidden", f'User "system:serviceaccount:{api.namespace}:robot" cannot impersonate')
    without = await api.ask("GET", "/api", headers={"impersonate-group": "team"})
    without.says(400, "BadRequest", "without impersonating a user")


# ---- what drives and static volumes need: a node writes only its own objects -----------------------------------------


OWN = [
    {"name": "node", "expression": f"request.userInfo.extra[?'{EXTRA}node-name'][0].orValue('')"},
    {"name": "about", "expression": "(request.operation == 'DELETE' ? oldObject : object).spec.node"},
]


async def test_an_account_writes_objects_of_its_own_node_alone(api: Api):
    if not api.can.authenticates:
        pytest.skip("this connection means admin, whatever is shown")
    kind = await defined(api)
    user = f"system:serviceaccount:{api.namespace}:robot"
    mine = {"name": "robot", "expression": f"request.userInfo.username == '{user}'"}
    rules = [rule("disks", "disks/status", group=kind.group)]
    text = "variables.node + ' is not ' + variables.about"
    checks = [
        validation("variables.node != ''", message="this token names no node"),
        validation("variables.node == variables.about", messageExpression=text),
    ]
    await enforce(api, rules, *checks, variables=OWN, matchConditions=[mine])
    bound, unbound = await node_account(api, kind)

    own, foreign = disk("own", node="n1"), disk("foreign", node="n2")
    assert (await bound.create(kind, own)).status == 201
    assert (await bound.patch(kind, "own", {"status": {"state": "Ready"}}, subresource="status")).status == 200
    is_denied(await bound.create(kind, foreign), "n1 is not n2")
    assert (await api.create(kind, foreign)).status == 201
    is_denied(await bound.patch(kind, "foreign", {"status": {"state": "x"}}, subresource="status"), "n1 is not n2")
    is_denied(await bound.delete(kind, "foreign"), "n1 is not n2")
    is_denied(await unbound.create(kind, disk("d", node="n1")), "this token names no node")
    assert (await bound.delete(kind, "own")).status == 200


async def node_account(api: Api, kind: kinds.Kind) -> tuple[Api, Api]:
    """An account that may write disks: with the token of a pod on node n1, and with one that names no pod."""
    await robot(api)
    everything = {"verbs": ["*"], "apiGroups": [kind.group], "resources": ["*"]}
    await api.make(kinds.ROLE, role("r", everything))
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", account("robot", api.namespace)))
    given = {"serviceAccountName": "robot", "automountServiceAccountToken": False, "nodeName": "n1"}
    uid = (await api.make(kinds.POD, pod("p", **given)))["metadata"]["uid"]

    async def bearer(**spec: Any) -> Api:
        return api.bearing((await ask(api, **spec)).made["status"]["token"])

    return (
        await bearer(boundObjectRef={"kind": "Pod", "apiVersion": "v1", "name": "p", "uid": uid}),
        await bearer(),
    )
