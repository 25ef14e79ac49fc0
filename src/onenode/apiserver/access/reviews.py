"""Questions about users that are answered and never stored: who am I, who is this, may they, and a token please.

A body has been decoded, with its defaults, before it comes here (`validation_rules.decode_object`); it is judged here,
and what comes back is the body with its status. Refusals are raised.

Must not log a token. Issuing one leaves nothing behind: it is good until it ends, or its account does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from random import Random
from typing import Any, Final
from uuid import UUID

from onenode.apiserver.access.authentication import BOUND_KINDS, Authenticator, stored_uid
from onenode.apiserver.access.rbac_rules import (
    MASTERS,
    Denied,
    PathQuestion,
    Policy,
    Question,
    ResourceQuestion,
    User,
    decide,
    rules_of,
)
from onenode.apiserver.access.signed_tokens import ISSUER, BoundObject, InvalidToken, TokenClaims, TokenSigner
from onenode.apiserver.answers.status_answers import bad_request, invalid, not_found, precondition_failed
from onenode.apiserver.kinds.kind_rules import rules_of as rules_of_kind
from onenode.apiserver.store.versions import Key, Stored, fresh
from orlop.foundation.clock import Clock
from orlop.kube.kinds import NODE, POD, SERVICE_ACCOUNT, Kind
from orlop.kube.objects import time_text

Object = dict[str, Any]

HOUR: Final = 3600


class Reviews:
    """`policy` and `stored` are read for each review; tokens are made with the other three."""

    def __init__(
        self,
        authenticator: Authenticator,
        *,
        policy: Callable[[], Policy],
        stored: Callable[[Key], Stored | None],
        signer: TokenSigner,
        clock: Clock,
        random: Random,
    ) -> None:
        self._authenticator = authenticator
        self._policy = policy
        self._stored = stored
        self._signer = signer
        self._clock = clock
        self._random = random

    async def review(self, kind: Kind, body: Object, user: User, namespace: str, name: str) -> Object:
        """`namespace` and `name` are those of the path; the kind is that of the body or of whom it is about."""
        causes = [*rules_of_kind(body["apiVersion"], body["kind"]).causes(body)]
        if causes:
            raise invalid(_kind_of(kind, body), body.get("metadata", {}).get("name", ""), causes)
        body = {"metadata": {}, **body}
        match body["kind"]:
            case "SelfSubjectReview":
                metadata = {**body["metadata"], "creationTimestamp": time_text(self._clock.now())}
                return {**body, "metadata": metadata, "status": {"userInfo": _user_info(user)}}
            case "TokenReview":
                return {**body, "status": self._token_review(body.get("spec", {}))}
            case "SelfSubjectAccessReview":
                return self._access_review(body, user)
            case "SubjectAccessReview" | "LocalSubjectAccessReview":
                return self._access_review(body, _user_of(body.get("spec", {})))
            case "SelfSubjectRulesReview":
                return self._rules_review(body, user)
            case "TokenRequest":
                return self._token_request(body, namespace, name)
            case other:
                raise LookupError(f"{other} is no review")

    # ---- who is it ---------------------------------------------------------------------------------------------------

    def _token_review(self, spec: Mapping[str, Any]) -> Object:
        token = spec.get("token", "")
        if not token:
            raise bad_request("token is required for TokenReview in authentication")
        try:
            found = self._authenticator.recognise(token, spec.get("audiences") or (ISSUER,))
        except InvalidToken as error:
            return {"user": {}, "error": f"[invalid bearer token, {error}]"}
        return {"authenticated": True, "user": _user_info(found.user), "audiences": list(found.audiences)}

    # ---- may they ----------------------------------------------------------------------------------------------------

    def _access_review(self, body: Object, user: User) -> Object:
        decision = decide(user, _question(body.get("spec", {})), self._policy())
        if isinstance(decision, Denied):
            return {**body, "status": {"allowed": False}}
        reason = {} if MASTERS in user.groups else {"reason": decision.reason}
        return {**body, "status": {"allowed": True, **reason}}

    def _rules_review(self, body: Object, user: User) -> Object:
        namespace = body.get("spec", {}).get("namespace", "")
        if not namespace:
            raise bad_request("no namespace on request")
        rules = rules_of(user, namespace, self._policy())
        paths = [_only(rule, "verbs", "nonResourceURLs") for rule in rules if rule.get("nonResourceURLs")]
        resources = [
            _only(rule, "verbs", "apiGroups", "resources", "resourceNames") for rule in rules if rule.get("resources")
        ]
        status = {"resourceRules": resources, "nonResourceRules": paths, "incomplete": False}
        return {**body, "status": status}

    # ---- a token please ----------------------------------------------------------------------------------------------

    def _token_request(self, body: Object, namespace: str, name: str) -> Object:
        uid = stored_uid(self._stored(Key(SERVICE_ACCOUNT.resource, namespace, name)))
        if uid is None:
            raise not_found(SERVICE_ACCOUNT, name)
        spec = {
            "audiences": [ISSUER],
            "expirationSeconds": HOUR,
            "boundObjectRef": None,
            **_without_empty(body.get("spec", {})),
        }
        bound, node = self._bound(spec.get("boundObjectRef"), namespace, name)
        now = self._clock.now().replace(microsecond=0)
        claims = TokenClaims(
            namespace=namespace,
            account=name,
            account_uid=uid,
            audiences=tuple(spec["audiences"]),
            issued=now,
            expires=now + timedelta(seconds=spec["expirationSeconds"]),
            id=str(UUID(int=self._random.getrandbits(128), version=4)),
            bound=bound,
            node=node,
        )
        status = {"token": self._signer.sign(claims), "expirationTimestamp": time_text(claims.expires)}
        metadata = {"name": name, "namespace": namespace, "creationTimestamp": time_text(now)}
        return {**body, "metadata": metadata, "spec": spec, "status": status}

    def _bound(
        self, reference: Mapping[str, Any] | None, namespace: str, account: str
    ) -> tuple[BoundObject | None, BoundObject | None]:
        """Return what a token is bound to, and of a pod its node."""
        if reference is None:
            return None, None
        kind, name = BOUND_KINDS.get(reference.get("kind", "")), reference.get("name", "")
        if kind is None or reference.get("apiVersion", kind.api_version) != kind.api_version:
            raise bad_request(f"cannot bind token to object of type {_type_text(reference)}")
        stored = self._stored(Key(kind.resource, namespace if kind.namespaced else "", name))
        uid = stored_uid(stored)
        if stored is None or uid is None:
            raise not_found(kind, name)
        _refuse_other(kind, name, reference.get("uid", ""), uid)
        if kind is POD and fresh(stored).get("spec", {}).get("serviceAccountName") != account:
            why = "to pod running with different serviceaccount name."
            raise bad_request(f'cannot bind token for serviceaccount "{account}" {why}')
        return BoundObject(kind.kind, name, uid), self._node(fresh(stored)) if kind is POD else None

    def _node(self, pod: Mapping[str, Any]) -> BoundObject | None:
        """Return the node of a pod; a Node that does not exist is named without its uid, as in Kubernetes."""
        name = pod.get("spec", {}).get("nodeName")
        return (
            BoundObject(NODE.kind, name, stored_uid(self._stored(Key(NODE.resource, "", name))) or "") if name else None
        )


def _kind_of(kind: Kind, body: Mapping[str, Any]) -> Kind:
    """A token is asked for below its account, and has a kind of its own."""
    if body["kind"] == kind.kind:
        return kind
    group, _, version = body["apiVersion"].rpartition("/")
    return Kind(group, version, body["kind"], f"{body['kind'].lower()}s", namespaced=True)


def _refuse_other(kind: Kind, name: str, wanted: str, found: str) -> None:
    if wanted and wanted != found:
        why = f"the UID in the bound object reference ({wanted}) does not match the UID in record."
        raise precondition_failed(kind, name, f"{why} The object might have been deleted and then recreated")


def _type_text(reference: Mapping[str, Any]) -> str:
    return f"{reference.get('apiVersion', '')}, Kind={reference.get('kind', '')}"


def _question(spec: Mapping[str, Any]) -> Question:
    asked = spec.get("resourceAttributes")
    if asked is None:
        path = spec.get("nonResourceAttributes") or {}
        return PathQuestion(path.get("verb", ""), path.get("path", ""))
    fields = ("verb", "group", "resource", "subresource", "namespace", "name")
    return ResourceQuestion(*(asked.get(field, "") for field in fields))


def _user_of(spec: Mapping[str, Any]) -> User:
    extra = {key: tuple(values or ()) for key, values in (spec.get("extra") or {}).items()}
    return User(spec.get("user", ""), tuple(spec.get("groups") or ()), spec.get("uid", ""), extra or None)


def _user_info(user: User) -> Object:
    extra = {key: list(values) for key, values in (user.extra or {}).items()}
    info = {"username": user.name, "uid": user.uid, "groups": list(user.groups), "extra": extra}
    return {key: value for key, value in info.items() if value}


def _only(rule: Mapping[str, Any], *fields: str) -> Object:
    return {field: list(rule[field]) for field in fields if rule.get(field)}


def _without_empty(spec: Mapping[str, Any]) -> Object:
    return {key: value for key, value in spec.items() if value not in (None, [], "")}
