"""How a namespace ends."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from support.api.api_objects import finalized, named
from support.api.api_under_test import Api
from support.waiting import eventually_answered

HELD = "example.com/held"


async def gone(api: Api, path: str) -> bool:
    async def is_gone() -> bool:
        return (await api.ask("GET", path)).status == 404

    return await eventually_answered(is_gone)


def needs_emptying(api: Api) -> None:
    if not api.can.empties_namespaces:
        pytest.skip("a bare kube-apiserver has no namespace controller, which is what empties a namespace")


async def test_a_deleted_namespace_is_terminating_in_the_answer(api: Api):
    name = api.unique("ns")
    await api.make(kinds.NAMESPACE, named(name))
    await api.make(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": name, "finalizers": [HELD]}})
    answer = await api.delete(kinds.NAMESPACE, name)

    assert answer.made["status"]["phase"] == "Terminating"
    assert answer.made["metadata"]["deletionTimestamp"]
    path = kinds.CONFIG_MAP.object_path(name, "c")
    await api.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type="application/merge-patch+json")


async def test_nothing_new_is_made_in_a_namespace_that_ends(api: Api):
    name = api.unique("ns")
    await api.make(kinds.NAMESPACE, finalized(named(name), HELD))
    await api.delete(kinds.NAMESPACE, name)
    answer = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": name}})

    message = f"unable to create new content in namespace {name} because it is being terminated"
    answer.is_refused(
        403,
        "Forbidden",
        f'configmaps "c" is forbidden: {message}',
        {
            "name": "c",
            "kind": "configmaps",
            "causes": [
                {
                    "reason": "NamespaceTerminating",
                    "message": f"namespace {name} is being terminated",
                    "field": "metadata.namespace",
                }
            ],
        },
    )


@pytest.mark.parametrize("name", ["default", "kube-system", "kube-public"])
async def test_the_namespaces_of_the_system_stay(api: Api, name: str):
    answer = await api.delete(kinds.NAMESPACE, name)

    answer.is_refused(
        403,
        "Forbidden",
        f'namespaces "{name}" is forbidden: this namespace may not be deleted',
        {"name": name, "kind": "namespaces"},
    )


async def test_a_namespace_ends_with_all_that_is_in_it(api: Api):
    needs_emptying(api)
    name = api.unique("ns")
    await api.make(kinds.NAMESPACE, named(name))
    for kind in (kinds.CONFIG_MAP, kinds.SECRET, kinds.LEASE, kinds.ROLE):
        await api.make(kind, {"metadata": {"name": "x", "namespace": name}})
    await api.delete(kinds.NAMESPACE, name)

    assert await gone(api, api.path(kinds.NAMESPACE, name))
    assert (await api.ask("GET", kinds.CONFIG_MAP.collection_path(name))).made["items"] == []


async def test_a_namespace_waits_for_finalizers_of_what_is_in_it(api: Api):
    needs_emptying(api)
    name = api.unique("ns")
    await api.make(kinds.NAMESPACE, named(name))
    await api.make(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": name, "finalizers": [HELD]}})
    await api.make(kinds.SECRET, {"metadata": {"name": "s", "namespace": name}})
    await api.delete(kinds.NAMESPACE, name)
    assert await gone(api, kinds.SECRET.object_path(name, "s"))
    assert (await api.get(kinds.NAMESPACE, name)).json["status"]["phase"] == "Terminating"

    path = kinds.CONFIG_MAP.object_path(name, "c")
    await api.ask("PATCH", path, {"metadata": {"finalizers": None}}, content_type="application/merge-patch+json")
    assert await gone(api, api.path(kinds.NAMESPACE, name))


async def test_whoever_finalizes_an_empty_namespace_ends_it(api: Api):
    name = api.unique("ns")
    made = await api.make(kinds.NAMESPACE, finalized(named(name), HELD))
    await api.delete(kinds.NAMESPACE, name)
    without = {**made, "spec": {}, "metadata": {"name": name}}
    answer = await api.put(kinds.NAMESPACE, without, "finalize")

    assert answer.status in {200, 409}


async def test_a_namespaces_name_is_a_label(api: Api):
    answer = await api.create(kinds.NAMESPACE, named("with.dots"))

    answer.is_invalid(("FieldValueInvalid", "metadata.name"))


async def test_namespaces_cannot_be_deleted_all_at_once(api: Api):
    answer = await api.ask("DELETE", kinds.NAMESPACE.collection_path(), labelSelector="no=such")

    answer.is_refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


async def test_servers_find_the_ca_of_their_clients_in_the_system_namespace(api: Api):
    path = kinds.CONFIG_MAP.object_path("kube-system", "extension-apiserver-authentication")

    assert (await api.ask("GET", path)).made["data"]["client-ca-file"]
