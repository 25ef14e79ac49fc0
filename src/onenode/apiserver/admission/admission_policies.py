"""Admission: every write of a client is judged by the policies that match it, as the store has them at that moment.

Order, as in Kubernetes: the object is complete and valid → policies by name, each once for each of its bindings → the
first denial refuses the write, warnings go to the client. A server without bindings evaluates nothing. Policies are
read again after a change of one, so a change applies to the next write. Policies and bindings themselves are exempt:
a policy that denies everything can still be deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from onenode.apiserver.access.access_policy import AccessPolicy
from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.admission.policy_rules import (
    Denial,
    PolicyExpressions,
    SeenValues,
    compile_policy,
    denials,
)
from onenode.apiserver.admission.write_attributes import (
    Admit,
    WriteAttributes,
    admit_all,
    namespace_value,
    request_value,
)
from onenode.apiserver.admission.write_match_rules import MatchResources, match_resources, matched_kind
from onenode.apiserver.answers.status_answers import denied_by_policy
from onenode.apiserver.custom_resources.custom_kinds import KindTable
from onenode.apiserver.custom_resources.expressions import InvalidExpression
from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.requests.request_paths import ResourceRequest
from onenode.apiserver.store.change_notice import ChangeNotice
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import JSON, Key, fresh
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.kinds import (
    NAMESPACE,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
    Kind,
)

Object = Mapping[str, Any]

DENY: Final = "Deny"
WARN: Final = "Warn"
EXEMPT: Final = frozenset({VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING})
OPTIONS: Final = {"create": "CreateOptions", "update": "UpdateOptions", "patch": "PatchOptions"}


class Admission(Protocol):
    """The judgement of one request; a request may write several objects."""

    @property
    def warnings(self) -> Sequence[str]: ...

    @property
    def admit(self) -> Admit: ...


@dataclass(frozen=True, slots=True)
class _NoPolicies:
    admit: Admit = admit_all
    warnings: Sequence[str] = ()


_ADMITTED: Final = _NoPolicies()


@dataclass(frozen=True, slots=True)
class _Binding:
    name: str
    actions: frozenset[str]
    match: MatchResources | None


@dataclass(frozen=True, slots=True)
class _Policy:
    """`broken` is why its expressions cannot be compiled; a policy that was stored by another version may be so."""

    name: str
    match: MatchResources
    expressions: PolicyExpressions | None
    bindings: tuple[_Binding, ...]
    broken: str = ""
    fails_closed: bool = True


@dataclass(frozen=True, slots=True)
class AccessControl:
    """What decides whether a client may do what it asks for: its rights, and the policies for what it writes."""

    rights: AccessPolicy
    admission: AdmissionPolicies


class AdmissionPolicies:
    """The policies in the store that have a binding. `table` returns the kinds that are served."""

    def __init__(self, store: ObjectStore, table: Callable[[], KindTable]) -> None:
        self._store = store
        self._table = table
        self._notice = ChangeNotice(
            store, VALIDATING_ADMISSION_POLICY.resource, VALIDATING_ADMISSION_POLICY_BINDING.resource
        )
        self._policies: tuple[_Policy, ...] = ()
        self._equivalents: tuple[KindTable, dict[Kind, tuple[KindInStore, ...]]] | None = None

    def admission(
        self,
        request: ResourceRequest,
        user: User,
        *,
        dry_run: bool,
        deletion: DeletionOptions | None = None,
        part_kind: Kind | None = None,
    ) -> Admission:
        """Return the judgement of a request; `part_kind` is the kind of its body where that is not the object's."""
        policies = self._current()
        if not policies or request.kind.kind in EXEMPT:
            return _ADMITTED
        asked = _WriteRequest(request, user, dry_run, deletion, part_kind or request.kind.kind)
        return _PolicyAdmission(self, policies, asked)

    def close(self) -> None:
        self._notice.close()

    def equivalents(self, kind: KindInStore) -> tuple[KindInStore, ...]:
        """Return the other served kinds of the same objects: their other versions, or another group's form."""
        table = self._table()
        if self._equivalents is None or self._equivalents[0] is not table:
            self._equivalents = (table, {})
        known = self._equivalents[1]
        if kind.kind not in known:
            same = (each for each in table.by_path.values() if each.resource == kind.resource)
            known[kind.kind] = tuple(each for each in same if each.kind != kind.kind)
        return known[kind.kind]

    def namespace(self, name: str) -> Object | None:
        stored = self._store.get(Key(NAMESPACE.resource, "", name))
        return None if stored is None else JSON.decode(stored.json)

    def _current(self) -> tuple[_Policy, ...]:
        if self._notice.take():
            bindings = self._stored(VALIDATING_ADMISSION_POLICY_BINDING)
            read = (_policy(each, bindings) for each in self._stored(VALIDATING_ADMISSION_POLICY) if bindings)
            self._policies = tuple(each for each in read if each.bindings)
        return self._policies

    def _stored(self, kind: Kind) -> list[Object]:
        return [fresh(stored) for stored in self._store.list(kind.resource).items]


def _policy(obj: Object, bindings: Sequence[Object]) -> _Policy:
    name, spec = obj["metadata"]["name"], obj["spec"]
    mine = tuple(_binding(each) for each in bindings if each["spec"].get("policyName") == name)
    match = match_resources(spec.get("matchConstraints") or {})
    if not mine:
        return _Policy(name, match, None, ())
    try:
        return _Policy(name, match, compile_policy(spec), mine)
    except InvalidExpression as error:
        return _Policy(name, match, None, mine, str(error), fails_closed=spec.get("failurePolicy") != "Ignore")


def _binding(obj: Object) -> _Binding:
    spec = obj["spec"]
    match = spec.get("matchResources")
    actions = frozenset(spec.get("validationActions", ()))
    return _Binding(obj["metadata"]["name"], actions, None if match is None else match_resources(match))


@dataclass(frozen=True, slots=True)
class _WriteRequest:
    """`deletion` is None for other verbs; `part_kind` is the kind of the body."""

    http: ResourceRequest
    user: User
    dry_run: bool
    deletion: DeletionOptions | None
    part_kind: Kind


class _PolicyAdmission:
    def __init__(self, policies: AdmissionPolicies, bound: tuple[_Policy, ...], request: _WriteRequest) -> None:
        self._policies = policies
        self._bound = bound
        self._request = request
        self.warnings: list[str] = []

    def admit(self, new: Object | None, old: Object | None) -> None:
        write = self._attributes(new, old)
        judged = _JudgedWrite(write, self._request.http.kind, self._policies)
        for policy in self._bound:
            kind = judged.matched(policy.match)
            if kind is not None:
                self._judge(policy, judged, kind)

    def _judge(self, policy: _Policy, judged: _JudgedWrite, kind: Kind) -> None:
        about = f"ValidatingAdmissionPolicy '{policy.name}'"
        write = judged.write
        if policy.expressions is None:
            if policy.fails_closed:
                why = f"{about} denied request: failed to configure policy: {policy.broken}"
                raise denied_by_policy(write.kind, write.shown_name, why, "Invalid")
            return
        failures: list[Denial] | None = None
        for binding in policy.bindings:
            if binding.match is not None and judged.matched(binding.match) is None:
                continue
            failures = denials(policy.expressions, judged.values(kind)) if failures is None else failures
            self._act(about, binding, write, failures)

    def _act(self, about: str, binding: _Binding, write: WriteAttributes, failures: Sequence[Denial]) -> None:
        bound = f"{about} with binding '{binding.name}'"
        for denial in failures:
            if DENY in binding.actions:
                why = f"{bound} denied request: {denial.message}"
                raise denied_by_policy(write.kind, write.shown_name, why, denial.reason)
            if WARN in binding.actions:
                self.warnings.append(f"Validation failed for {bound}: {denial.message}")

    def _attributes(self, new: Object | None, old: Object | None) -> WriteAttributes:
        http, kind = self._request.http, self._request.http.kind.kind
        name = http.name or ((new or {}).get("metadata") or {}).get("name", "")
        return WriteAttributes(
            kind=kind,
            subresource=http.subresource.name if http.subresource else "",
            part_kind=self._request.part_kind,
            namespace=name if kind is NAMESPACE else http.namespace,
            name=name,
            user=self._request.user,
            object=new,
            old=old,
            dry_run=self._request.dry_run,
            options=_options(self._request),
        )


def _options(request: _WriteRequest) -> Object:
    """Return the options of the operation, as `request.options` has them."""
    options: dict[str, Any] = {"dryRun": ["All"]} if request.dry_run else {}
    deletion = request.deletion
    if deletion is None:
        kind = OPTIONS[request.http.verb]
        named = {name: request.http.option(name) for name in ("fieldManager", "fieldValidation")}
    else:
        kind, named = "DeleteOptions", {"propagationPolicy": deletion.propagation}
        guards = _without_none({"uid": deletion.uid, "resourceVersion": deletion.version})
        options |= {"preconditions": guards} if guards else {}
        options |= _without_none({"gracePeriodSeconds": deletion.grace_seconds})
    options |= {name: value for name, value in named.items() if value}
    return {"kind": kind, "apiVersion": "meta.k8s.io/v1", **options}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class _JudgedWrite:
    """One write, and what policies that match it share: its namespace, and its values for each kind it matched as."""

    def __init__(self, write: WriteAttributes, kind: KindInStore, policies: AdmissionPolicies) -> None:
        self.write = write
        self._kind = kind
        self._policies = policies
        self._others = policies.equivalents(kind)
        self._values: dict[Kind, SeenValues] = {}

    def matched(self, match: MatchResources) -> Kind | None:
        return matched_kind(match, self.write, [each.kind for each in self._others], self._namespace_labels)

    def _namespace_labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = (self._namespace() or {"metadata": {}})["metadata"].get("labels", {})
        return labels

    def _namespace(self) -> Object | None:
        return self._policies.namespace(self.write.namespace) if self.write.namespace else None

    def values(self, matched: Kind) -> SeenValues:
        if matched not in self._values:
            namespace = None if self.write.is_of_namespace else self._namespace()
            self._values[matched] = SeenValues(
                {
                    "object": self._converted(self.write.object, matched),
                    "oldObject": self._converted(self.write.old, matched),
                    "request": request_value(self.write, matched),
                    "namespaceObject": namespace_value(namespace),
                }
            )
        return self._values[matched]

    def _converted(self, obj: Object | None, matched: Kind) -> Object | None:
        """A rule about one version judges the objects of all others in its own."""
        if obj is None or matched == self._kind.kind:
            return obj
        return next(each for each in self._others if each.kind == matched).converted(obj)
