"""The rights that manifests grant, and those that requests needed on a server that enforces them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import pytest

from onenode.apiserver.access.access_policy import AccessPolicy
from onenode.apiserver.access.rbac_rules import Allowed, Decision, Question, ResourceQuestion, User

Right: TypeAlias = tuple[str, str, str, str]
"""The account, the API group, the resource with its subresource, and the verb."""


def granted_rights(manifests: Iterable[dict[str, Any]]) -> set[Right]:
    """Return the rights of every account by its bindings."""
    objects = {(each["kind"], each["metadata"]["name"]): each for each in manifests}
    return {
        (subject["name"], group, resource, verb)
        for (kind, _), binding in objects.items()
        if kind in {"ClusterRoleBinding", "RoleBinding"}
        for subject in binding["subjects"]
        for rule in objects[binding["roleRef"]["kind"], binding["roleRef"]["name"]]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def note_used_rights(monkeypatch: pytest.MonkeyPatch) -> set[Right]:
    """Return a set to which the right of every permitted request is added from now on."""
    rights: set[Right] = set()
    decide = AccessPolicy.decide

    def noting(policy: AccessPolicy, user: User, question: Question) -> Decision:
        decision = decide(policy, user, question)
        if isinstance(question, ResourceQuestion) and isinstance(decision, Allowed):
            rights.add((user.name.rpartition(":")[2], question.group, question.whole_resource, question.verb))
        return decision

    monkeypatch.setattr(AccessPolicy, "decide", noting)
    return rights
