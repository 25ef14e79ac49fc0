"""Who may do what: RBAC as Kubernetes decides it.

Roles, cluster roles and their bindings, as plain objects, are asked one question and give one decision. Members of
`system:masters` may do everything; for all others what no rule grants is denied, and there is no rule that denies.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
UNAUTHENTICATED: Final = "system:unauthenticated"
ANONYMOUS: Final = "system:anonymous"
ANY: Final = "*"
RBAC_GROUP: Final = "rbac.authorization.k8s.io"

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class User:
    """An authenticated user; `extra` appears in reviews and decides nothing."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] | None = None


ADMIN: Final = User("admin", (MASTERS, AUTHENTICATED))


@dataclass(frozen=True, slots=True)
class ResourceQuestion:
    """May the user do this to objects? `name` is empty where no single object is meant."""

    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def whole_resource(self) -> str:
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


@dataclass(frozen=True, slots=True)
class PathQuestion:
    """May the user ask for this path, which is no object's?"""

    verb: str
    path: str


Question = ResourceQuestion | PathQuestion


@dataclass(frozen=True, slots=True)
class Allowed:
    reason: str


@dataclass(frozen=True, slots=True)
class Denied:
    """`message` is what a client reads in its 403."""

    message: str


Decision = Allowed | Denied


@dataclass(frozen=True, slots=True)
class Policy:
    """All objects that grant rights."""

    roles: tuple[Object, ...] = ()
    cluster_roles: tuple[Object, ...] = ()
    role_bindings: tuple[Object, ...] = ()
    cluster_role_bindings: tuple[Object, ...] = ()


def decide(user: User, question: Question, policy: Policy) -> Decision:
    if MASTERS in user.groups:
        return Allowed(f"{user.name} is of the group {MASTERS}")
    for why, rules in _rules_for(user, question, policy):
        if any(_grants(rule, question) for rule in rules):
            return Allowed(why)
    missing = _missing_roles(user, question, policy)
    return Denied(_denial(user, question) + (f": RBAC: {missing}" if missing else ""))


def rules_of(user: User, namespace: str, policy: Policy) -> list[Object]:
    """Every rule that holds for the user in a namespace: what `kubectl auth can-i --list` prints."""
    if MASTERS in user.groups:
        everything = {"verbs": [ANY], "apiGroups": [ANY], "resources": [ANY]}
        return [everything, {"verbs": [ANY], "nonResourceURLs": [ANY]}]
    in_namespace = ResourceQuestion("get", "", "", namespace=namespace)
    return [rule for _, rules in _rules_for(user, in_namespace, policy) for rule in rules]


def _rules_for(user: User, question: Question, policy: Policy) -> Iterator[tuple[str, list[Object]]]:
    """Cluster-wide bindings first, then those of the question's namespace; each with its reason."""
    for binding, subject in _bindings_for(user, question, policy):
        namespace = _namespace(binding)
        kind, where = (
            ("RoleBinding", f"{_name(binding)}/{namespace}") if namespace else ("ClusterRoleBinding", _name(binding))
        )
        why = f'RBAC: allowed by {kind} "{where}" of {_role_text(binding)} to {subject}'
        yield why, [rule for role in _roles_of(binding, policy) for rule in role.get("rules") or []]


def _bindings_for(user: User, question: Question, policy: Policy) -> Iterator[tuple[Object, str]]:
    for binding in policy.cluster_role_bindings:
        if subject := _subject(binding, user):
            yield binding, subject
    namespace = question.namespace if isinstance(question, ResourceQuestion) else ""
    for binding in policy.role_bindings if namespace else ():
        if _namespace(binding) == namespace and (subject := _subject(binding, user)):
            yield binding, subject


def _roles_of(binding: Object, policy: Policy) -> list[Object]:
    """The role that the binding names, if there is one."""
    reference = binding.get("roleRef") or {}
    if reference.get("kind") == "ClusterRole":
        return [role for role in policy.cluster_roles if _name(role) == reference.get("name")]
    namespace = _namespace(binding)
    mine = [role for role in policy.roles if _namespace(role) == namespace]
    return [role for role in mine if _name(role) == reference.get("name")]


def _missing_roles(user: User, question: Question, policy: Policy) -> str:
    """Those that the user is bound to and that are not there: the usual reason for rights one believes to have."""
    references = [
        binding.get("roleRef") or {}
        for binding, _ in _bindings_for(user, question, policy)
        if not _roles_of(binding, policy)
    ]
    missing = [
        f'{str(reference.get("kind", "")).lower()}.{RBAC_GROUP} "{reference.get("name", "")}" not found'
        for reference in references
    ]
    return missing[0] if len(missing) == 1 else f"[{', '.join(missing)}]" if missing else ""


def _subject(binding: Object, user: User) -> str:
    """The subject of the binding that is the user, in words; empty if none is."""
    for subject in binding.get("subjects") or []:
        match subject.get("kind"):
            case "User" if subject.get("name") == user.name:
                return f'User "{user.name}"'
            case "Group" if subject.get("name") in user.groups:
                return f'Group "{subject["name"]}"'
            case "ServiceAccount":
                # Left out, the namespace is the binding's own.
                namespace = subject.get("namespace") or _namespace(binding)
                if user.name == service_account_user(namespace, subject.get("name", "")):
                    return f'ServiceAccount "{subject["name"]}/{namespace}"'
            case _:
                continue
    return ""


def service_account_user(namespace: str, name: str) -> str:
    return f"system:serviceaccount:{namespace}:{name}"


def _grants(rule: Object, question: Question) -> bool:
    if not _holds(rule.get("verbs"), question.verb):
        return False
    if isinstance(question, PathQuestion):
        return any(_path_matches(pattern, question.path) for pattern in rule.get("nonResourceURLs") or [])
    return (
        _holds(rule.get("apiGroups"), question.group)
        and _resource_matches(rule.get("resources") or [], question)
        and _name_matches(rule.get("resourceNames") or [], question)
    )


def _holds(granted: Iterable[str] | None, wanted: str) -> bool:
    return any(one in {ANY, wanted} for one in granted or [])


def _resource_matches(granted: Iterable[str], question: ResourceQuestion) -> bool:
    """`pods` does not grant `pods/log`; `*/scale` grants the scale of everything."""
    wanted = {ANY, question.whole_resource}
    if question.subresource:
        wanted.add(f"{ANY}/{question.subresource}")
    return any(one in wanted for one in granted)


def _name_matches(granted: Iterable[str], question: ResourceQuestion) -> bool:
    names = list(granted)
    return not names or question.name in names


def _path_matches(pattern: str, path: str) -> bool:
    if pattern == ANY:
        return True
    if pattern.endswith(ANY):
        return path.startswith(pattern.removesuffix(ANY))
    return path == pattern


def _denial(user: User, question: Question) -> str:
    if isinstance(question, PathQuestion):
        return f'forbidden: User "{user.name}" cannot {question.verb} path "{question.path}"'
    group = f".{question.group}" if question.group else ""
    about = f'{question.resource}{group} "{question.name}"' if question.name else f"{question.resource}{group}"
    where = f'in the namespace "{question.namespace}"' if question.namespace else "at the cluster scope"
    return (
        f'{about} is forbidden: User "{user.name}" cannot {question.verb} resource "{question.whole_resource}" '
        f'in API group "{question.group}" {where}'
    )


def _role_text(binding: Object) -> str:
    reference = binding.get("roleRef") or {}
    return f'{reference.get("kind", "")} "{reference.get("name", "")}"'


def _name(thing: Object) -> str:
    return str((thing.get("metadata") or {}).get("name", ""))


def _namespace(thing: Object) -> str:
    return str((thing.get("metadata") or {}).get("namespace", ""))


# ---- acting for somebody else ----------------------------------------------------------------------------------------

# Asking as somebody else (`kubectl --as`): whom the headers name, and what one must be allowed for it. Pure.
#
# Each part needs the right to `impersonate` it: the user or service account, each group, the uid, each value of
# extra.


USER: Final = "impersonate-user"
GROUP: Final = "impersonate-group"
UID: Final = "impersonate-uid"
EXTRA: Final = "impersonate-extra-"
PREFIX: Final = "impersonate-"
# Between the values of a header that came several times; see edge/server_connection.
BETWEEN: Final = "\n"
ACCOUNT_PREFIX: Final = "system:serviceaccount:"
AUTHENTICATION_GROUP: Final = "authentication.k8s.io"


class NobodyNamed(ValueError):
    def __init__(self, given: Iterable[str]) -> None:
        super().__init__(f"requested {', '.join(sorted(given))} without impersonating a user: name the user as well")


@dataclass(frozen=True, slots=True)
class Impersonation:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def asked_for(headers: Mapping[str, str]) -> Impersonation | None:
    """None where nobody else is meant."""
    given = {name: value for name, value in headers.items() if name.startswith(PREFIX)}
    if not given:
        return None
    if not given.get(USER):
        raise NobodyNamed(given)
    groups = tuple(group for group in given.get(GROUP, "").split(BETWEEN) if group)
    extra = {
        unquote(name.removeprefix(EXTRA)): tuple(value.split(BETWEEN))
        for name, value in given.items()
        if name.startswith(EXTRA)
    }
    return Impersonation(given[USER].split(BETWEEN)[0], groups, given.get(UID, ""), extra)


def questions(asked: Impersonation) -> Iterator[ResourceQuestion]:
    """All of them must be allowed."""
    account = _account(asked.name)
    if account is not None:
        namespace, name = account
        yield ResourceQuestion("impersonate", "", "serviceaccounts", namespace=namespace, name=name)
    else:
        yield ResourceQuestion("impersonate", "", "users", name=asked.name)
    for group in asked.groups:
        yield ResourceQuestion("impersonate", "", "groups", name=group)
    if asked.uid:
        yield ResourceQuestion("impersonate", AUTHENTICATION_GROUP, "uids", name=asked.uid)
    for key, values in asked.extra.items():
        for value in values:
            yield ResourceQuestion("impersonate", AUTHENTICATION_GROUP, "userextras", subresource=key, name=value)


def user_of(asked: Impersonation) -> User:
    return User(asked.name, _groups(asked), asked.uid, asked.extra or None)


def _groups(asked: Impersonation) -> tuple[str, ...]:
    """Who is somebody is authenticated; a service account that names no groups has those of every account."""
    groups = asked.groups
    account = _account(asked.name)
    if account is not None and not groups:
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{account[0]}")
    if AUTHENTICATED in groups or UNAUTHENTICATED in groups:
        return groups
    return (*groups, UNAUTHENTICATED if asked.name == ANONYMOUS else AUTHENTICATED)


def _account(name: str) -> tuple[str, str] | None:
    if not name.startswith(ACCOUNT_PREFIX):
        return None
    namespace, colon, account = name.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, account) if colon and namespace and account and ":" not in account else None
