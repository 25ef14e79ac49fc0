"""ValidatingAdmissionPolicies for tests: each judges one namespace, so that tests beside it are left alone."""

from __future__ import annotations

from typing import Any

from orlop.kube import kinds
from support.api.api_under_test import Answer, Api
from support.waiting import eventually_answered

Object = dict[str, Any]

POLICY = kinds.VALIDATING_ADMISSION_POLICY
BINDING = kinds.VALIDATING_ADMISSION_POLICY_BINDING


def rule(*resources: str, group: str = "", **rest: Any) -> Object:
    """In namespaces alone, unless the scope is named: a selector of namespaces leaves no cluster-wide object out."""
    given = {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"], "resources": list(resources)}
    return {**given, "scope": "Namespaced", **rest}


def validation(expression: str, **rest: str) -> Object:
    return {"expression": expression, **rest}


def policy(name: str, rules: list[Object], *validations: Object, match: Object | None = None, **spec: Any) -> Object:
    constraints = {"resourceRules": rules, **(match or {})}
    whole = {"matchConstraints": constraints, "validations": list(validations), **spec}
    return {"metadata": {"name": name}, "spec": whole}


def policy_binding(name: str, policy: str, *actions: str, **spec: Any) -> Object:
    whole = {"policyName": policy, "validationActions": list(actions) or ["Deny"], **spec}
    return {"metadata": {"name": name}, "spec": whole}


def in_namespace(api: Api) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}}


async def enforce(
    api: Api, rules: list[Object], *validations: Object, actions: tuple[str, ...] = ("Deny",), **spec: Any
) -> str:
    """Make a policy and a binding that judge the test's namespace from now on; return the name of both."""
    name = api.unique(f"policy{len(api.left)}")
    match = {**in_namespace(api), **spec.pop("match", {})}
    probe = [rule("configmaps", resourceNames=["probe"], operations=["CREATE"])]
    await api.make(POLICY, policy(name, rules, *validations, match=match, **spec))
    await api.make(BINDING, policy_binding(name, name, *actions))
    if not api.can.is_orlops:  # a real server reads policies some time after they were written
        await api.make(POLICY, policy(f"{name}-probe", probe, validation("false"), match=in_namespace(api)))
        await api.make(BINDING, policy_binding(f"{name}-probe", f"{name}-probe"))
        await eventually_answered(lambda: _is_denied(api, "probe"))
    return name


def is_denied(answer: Answer, message: str) -> None:
    assert answer.status == 422, answer.text
    assert answer.json["message"].endswith(f"denied request: {message}"), answer.text


async def _is_denied(api: Api, name: str) -> bool:
    """403 is the answer of a policy under test whose reason is Forbidden: it judges the probe too."""
    answer = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": name}}, dryRun="All")
    return answer.status in {403, 422}
