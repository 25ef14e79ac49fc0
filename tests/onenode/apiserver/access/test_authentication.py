"""Who asks: tokens, and asking as somebody else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.access.rbac_rules import ADMIN, NobodyNamed, User, asked_for, questions, user_of
from support.api.api_users import ADMIN_TOKEN, People, bearer


def people() -> People:
    them = People()
    them.put("serviceaccounts", "default", "web", "u-web")
    them.put("pods", "default", "web-0", "u-pod", spec={"serviceAccountName": "web"})
    them.put("nodes", "", "n1", "u-node")
    return them


def test_the_admins_token_is_the_admin():
    assert people().authenticator.user_of(bearer(ADMIN_TOKEN)) == ADMIN
    assert "system:masters" in ADMIN.groups


NOBODY = [
    {},
    {"authorization": ""},
    {"authorization": "Bearer"},
    {"authorization": "Bearer "},
    {"authorization": f"Basic {ADMIN_TOKEN}"},
    {"authorization": ADMIN_TOKEN},
    bearer(ADMIN_TOKEN + "x"),
    bearer(ADMIN_TOKEN[:-1]),
    bearer("a.b.c"),
    bearer("\udcff\udcfe"),
    bearer("x" * 100_000),
    {"authorization": f"Bearer {ADMIN_TOKEN}, Bearer {ADMIN_TOKEN}"},
]


@pytest.mark.parametrize("headers", NOBODY, ids=[str(headers)[:50] for headers in NOBODY])
def test_whoever_brings_no_good_token_is_nobody(headers: dict[str, str]):
    assert people().authenticator.user_of(headers) is None


@given(st.text())
def test_no_made_up_token_is_anybody(token: str):
    assert token.strip() == ADMIN_TOKEN or people().authenticator.user_of(bearer(token)) is None


async def test_a_service_accounts_token_is_the_account():
    them = people()
    token = await them.token("default", "web")

    user = them.authenticator.user_of(bearer(token))

    assert user is not None
    assert (user.name, user.uid) == ("system:serviceaccount:default:web", "u-web")
    assert user.groups == ("system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated")
    assert user.extra is not None
    assert user.extra["authentication.kubernetes.io/credential-id"][0].startswith("JTI=")


async def test_a_token_ends_with_its_time():
    them = people()
    token = await them.token("default", "web", expirationSeconds=600)
    first = them.authenticator.user_of(bearer(token))
    them.clock.pass_by(seconds=599)
    before = them.authenticator.user_of(bearer(token))
    them.clock.pass_by(seconds=1)

    assert first == before is not None
    assert them.authenticator.user_of(bearer(token)) is None


async def test_a_token_ends_with_its_account_also_when_another_takes_the_name():
    them = people()
    token = await them.token("default", "web")
    assert them.authenticator.user_of(bearer(token)) is not None

    them.put("serviceaccounts", "default", "web", "u-another")
    assert them.authenticator.user_of(bearer(token)) is None
    them.remove("serviceaccounts", "default", "web")
    assert them.authenticator.user_of(bearer(token)) is None


@pytest.mark.parametrize(("kind", "resource", "namespace", "name"), [
    ("Pod", "pods", "default", "web-0"),
    ("Node", "nodes", "", "n1"),
])  # fmt: skip
async def test_a_bound_token_ends_with_what_it_is_bound_to(kind: str, resource: str, namespace: str, name: str):
    them = people()
    token = await them.token("default", "web", boundObjectRef={"apiVersion": "v1", "kind": kind, "name": name})
    user = them.authenticator.user_of(bearer(token))
    assert user is not None
    assert user.extra is not None
    assert user.extra[f"authentication.kubernetes.io/{kind.lower()}-name"] == (name,)

    them.put(resource, namespace, name, "u-another", spec={"serviceAccountName": "web"})
    assert them.authenticator.user_of(bearer(token)) is None


@pytest.mark.parametrize(("resource", "namespace", "name", "uid"), [
    ("serviceaccounts", "default", "web", "u-web"),
    ("pods", "default", "web-0", "u-pod"),
])  # fmt: skip
async def test_a_token_ends_a_minute_after_its_account_or_pod_should_be_gone_though_a_finalizer_keeps_it(
    resource: str, namespace: str, name: str, uid: str
):
    them = people()
    bound = {"apiVersion": "v1", "kind": "Pod", "name": "web-0"}
    token = await them.token("default", "web", boundObjectRef=bound)
    metadata = {"deletionTimestamp": them.clock.now().strftime("%Y-%m-%dT%H:%M:%SZ"), "finalizers": ["a.b/c"]}
    them.put(resource, namespace, name, uid, metadata=metadata)
    them.clock.pass_by(seconds=60)
    before = them.authenticator.user_of(bearer(token))
    them.clock.pass_by(seconds=1)

    assert before is not None
    assert them.authenticator.user_of(bearer(token)) is None


async def test_a_clock_set_back_by_up_to_a_minute_makes_no_fresh_token_invalid():
    them = people()
    token = await them.token("default", "web")
    them.clock.pass_by(seconds=-60)
    a_minute_early = [them.authenticator.user_of(bearer(token)) for _ in range(2)]
    them.clock.pass_by(seconds=-1)

    assert None not in a_minute_early
    assert them.authenticator.user_of(bearer(token)) is None


async def test_a_token_for_somebody_else_is_nobodys_here():
    them = people()
    token = await them.token("default", "web", audiences=["vault"])

    assert them.authenticator.user_of(bearer(token)) is None
    assert them.authenticator.recognise(token, ["x", "vault"]).audiences == ("vault",)
    assert them.authenticator.user_of(bearer(token)) is None


# ---- as somebody else ------------------------------------------------------------------------------------------------


def asked(**headers: str) -> list[str]:
    wanted = asked_for({name.replace("_", "-"): value for name, value in headers.items()})
    assert wanted is not None
    return [f"{one.group}/{one.whole_resource} {one.namespace}/{one.name}" for one in questions(wanted)]


def test_who_names_nobody_is_himself():
    assert asked_for({"accept": "x"}) is None


def test_groups_without_a_user_are_refused():
    with pytest.raises(NobodyNamed, match="name the user"):
        asked_for({"impersonate-group": "g"})


def test_every_part_of_somebody_else_must_be_allowed():
    assert asked(impersonate_user="u", impersonate_group="g1\ng2", impersonate_uid="7") == [
        "/users /u",
        "/groups /g1",
        "/groups /g2",
        "authentication.k8s.io/uids /7",
    ]
    assert asked(**{"impersonate_user": "u", "impersonate-extra-acme.com%2fteam": "a\nb"})[1:] == [
        "authentication.k8s.io/userextras/acme.com/team /a",
        "authentication.k8s.io/userextras/acme.com/team /b",
    ]


def test_a_service_account_is_asked_for_in_its_namespace_and_has_every_accounts_groups():
    name = "system:serviceaccount:ns:web"
    wanted = asked_for({"impersonate-user": name})
    assert wanted is not None

    assert asked(impersonate_user=name) == ["/serviceaccounts ns/web"]
    groups = ("system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated")
    assert user_of(wanted) == User(name, groups)


ODD = ["system:serviceaccount:ns", "system:serviceaccount::x", "system:serviceaccount:a:b:c", "system:serviceaccount:"]


@pytest.mark.parametrize("name", ODD)
def test_what_only_looks_like_a_service_account_is_a_user(name: str):
    assert asked(impersonate_user=name) == [f"/users /{name}"]


def test_the_anonymous_user_is_not_authenticated():
    wanted = asked_for({"impersonate-user": "system:anonymous"})
    assert wanted is not None
    assert user_of(wanted).groups == ("system:unauthenticated",)
