"""Asking as somebody else (`kubectl --as`): whom the headers name, and what one must be allowed for it. Pure.

Each part needs the right to `impersonate` it: the user or service account, each group, the uid, each value of extra.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote

from orlop.embedded.apiserver.access_rules import (
    ANONYMOUS,
    AUTHENTICATED,
    UNAUTHENTICATED,
    ResourceQuestion,
    User,
)

USER: Final = "impersonate-user"
GROUP: Final = "impersonate-group"
UID: Final = "impersonate-uid"
EXTRA: Final = "impersonate-extra-"
PREFIX: Final = "impersonate-"
# Between the values of a header that came several times; see http_connection.
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
