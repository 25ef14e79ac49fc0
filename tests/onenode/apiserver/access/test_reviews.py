"""Reviews: who is it, may they, and a token please."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import ADMIN, Policy, User
from onenode.apiserver.access.signed_tokens import ISSUER
from onenode.apiserver.answers.status_answers import Refusal
from orlop.kube.kinds import BUILT_IN, SERVICE_ACCOUNT
from support.api.api_users import ADMIN_TOKEN, People

U = User("u", ("system:authenticated",), "7", {"team": ("a", "b")})
READS_PODS = {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]}
READS_METRICS = {"verbs": ["get"], "nonResourceURLs": ["/metrics"]}
POLICY = Policy(
    cluster_roles=({"metadata": {"name": "r"}, "rules": [READS_PODS, READS_METRICS]},),
    cluster_role_bindings=(
        {
            "metadata": {"name": "b"},
            "roleRef": {"kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "name": "u"}],
        },
    ),
)


def people() -> People:
    them = People(POLICY)
    them.put("serviceaccounts", "default", "web", "u-web")
    them.put("pods", "default", "web-0", "u-pod", spec={"serviceAccountName": "web"})
    return them


async def review(them: People, name: str, spec: dict[str, Any], user: User, *place: str) -> dict[str, Any]:
    kind = next((kind for kind in BUILT_IN if kind.kind == name), SERVICE_ACCOUNT)
    api_version = kind.api_version if kind is not SERVICE_ACCOUNT else "authentication.k8s.io/v1"
    body = {"apiVersion": api_version, "kind": name, "spec": spec}
    if name.startswith("Local"):
        body["metadata"] = {"namespace": "default"}
    return await them.reviews.review(kind, body, user, *(place or ("", "")))


async def status(kind: str, spec: dict[str, Any], user: User = U) -> dict[str, Any]:
    reviewed = await review(people(), kind, spec, user)
    assert (reviewed["kind"], reviewed["spec"]) == (kind, spec)
    found: dict[str, Any] = reviewed["status"]
    return found


async def test_whoami_tells_all_that_is_known():
    info = {"username": "u", "uid": "7", "groups": ["system:authenticated"], "extra": {"team": ["a", "b"]}}
    assert await status("SelfSubjectReview", {}) == {"userInfo": info}


PODS = {"verb": "get", "resource": "pods", "namespace": "default", "name": "p"}
QUESTIONS = [
    ({"resourceAttributes": PODS}, True),
    ({"resourceAttributes": {**PODS, "verb": "delete"}}, False),
    ({"resourceAttributes": {**PODS, "subresource": "log"}}, False),
    ({"nonResourceAttributes": {"verb": "get", "path": "/metrics"}}, True),
    ({"nonResourceAttributes": {"verb": "get", "path": "/other"}}, False),
]


@pytest.mark.parametrize(("spec", "allowed"), QUESTIONS, ids=[str(spec)[:60] for spec, _ in QUESTIONS])
async def test_may_i_and_may_they_are_answered_alike(spec: dict[str, Any], *, allowed: bool):
    mine = await status("SelfSubjectAccessReview", spec)
    theirs = await status("SubjectAccessReview", {**spec, "user": "u"}, ADMIN)
    somebodys = await status("SubjectAccessReview", {**spec, "user": "v"}, ADMIN)

    assert mine["allowed"] == theirs["allowed"] == allowed
    assert not somebodys["allowed"]
    assert ("reason" in mine) == allowed


async def test_a_review_in_a_namespace_is_answered_like_the_others():
    assert (await status("LocalSubjectAccessReview", {"resourceAttributes": PODS, "user": "u"}))["allowed"]


async def test_a_group_may_be_asked_about_alone():
    spec = {"resourceAttributes": PODS, "groups": ["system:masters"]}
    assert (await status("SubjectAccessReview", spec))["allowed"]


async def test_the_rules_of_somebody_are_listed_as_can_i_prints_them():
    listed = await status("SelfSubjectRulesReview", {"namespace": "default"})
    assert listed == {"resourceRules": [READS_PODS], "nonResourceRules": [READS_METRICS], "incomplete": False}

    everything = await status("SelfSubjectRulesReview", {"namespace": "default"}, ADMIN)
    assert everything["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    assert everything["nonResourceRules"] == [{"verbs": ["*"], "nonResourceURLs": ["*"]}]


async def test_rules_are_those_of_a_namespace():
    with pytest.raises(Refusal, match="no namespace on request"):
        await status("SelfSubjectRulesReview", {})


async def test_a_token_is_reviewed():
    them = people()
    token = await them.token("default", "web", audiences=["vault", ISSUER])

    async def reviewed(**spec: Any) -> dict[str, Any]:
        found: dict[str, Any] = (await review(them, "TokenReview", spec, ADMIN))["status"]
        return found

    known = await reviewed(token=token)
    assert known["authenticated"]
    assert known["user"]["username"] == "system:serviceaccount:default:web"
    assert known["audiences"] == [ISSUER]
    assert (await reviewed(token=token, audiences=["x", "vault"]))["audiences"] == ["vault"]
    assert (await reviewed(token=ADMIN_TOKEN))["user"]["username"] == "admin"
    refused = await reviewed(token=token, audiences=["x"])
    assert "authenticated" not in refused
    assert refused["user"] == {}
    assert token not in refused["error"]
    with pytest.raises(Refusal, match="token is required"):
        await reviewed()


async def test_a_token_is_made_for_the_account_of_the_path():
    them = people()
    made = await review(them, "TokenRequest", {}, ADMIN, "default", "web")

    assert made["metadata"] == {"name": "web", "namespace": "default", "creationTimestamp": "2026-08-01T12:00:00Z"}
    assert made["spec"] == {"audiences": [ISSUER], "expirationSeconds": 3600, "boundObjectRef": None}
    assert made["status"]["expirationTimestamp"] == "2026-08-01T13:00:00Z"
    assert them.authenticator.recognise(made["status"]["token"]).user.uid == "u-web"


async def test_a_question_that_is_none_is_refused_with_its_causes():
    with pytest.raises(Refusal, match="exactly one of nonResourceAttributes or resourceAttributes") as refusal:
        await status("SubjectAccessReview", {"user": "u"})
    assert refusal.value.code == 422

    with pytest.raises(Refusal, match="less than 10 minutes") as short:
        await people().token("default", "web", expirationSeconds=10)
    assert short.value.details is not None
    assert short.value.details["kind"] == "TokenRequest"


REFUSED = [
    ("nobody", {}, 404, 'serviceaccounts "nobody" not found'),
    ("web", {"kind": "Pod", "name": "gone"}, 404, 'pods "gone" not found'),
    ("web", {"kind": "Pod", "name": "web-0", "uid": "other"}, 409, "does not match the UID in record"),
    ("web", {"kind": "ConfigMap", "name": "x"}, 400, "cannot bind token to object of type"),
    ("web", {"apiVersion": "v2", "kind": "Pod", "name": "web-0"}, 400, "cannot bind token to object of type"),
    ("other", {"kind": "Pod", "name": "web-0"}, 400, "different serviceaccount name"),
]


@pytest.mark.parametrize(("name", "bound", "code", "why"), REFUSED, ids=[why for *_, why in REFUSED])
async def test_a_token_that_cannot_be_made_is_refused(name: str, bound: dict[str, str], code: int, why: str):
    them = people()
    them.put("serviceaccounts", "default", "other", "u-other")

    with pytest.raises(Refusal, match=why) as refusal:
        await them.token("default", name, **({"boundObjectRef": bound} if bound else {}))

    assert refusal.value.code == code
