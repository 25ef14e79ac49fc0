"""Lists: their shape, what selects, pages, and versions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from orlop.kube import kinds
from orlop.kube.client import Selection
from orlop.kube.kinds import Kind
from support.api.api_objects import config_map, core_event, labelled, named, new_event, pod
from support.api.api_under_test import Answer, Api
from support.api.forgotten_history import forgotten_token, forgotten_version

SERVICE = next(kind for kind in kinds.STORED_ONLY if kind.kind == "Service")


async def test_a_list_has_a_kind_and_its_items_have_none(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("a"))
    answer = await api.list(kinds.CONFIG_MAP, fieldSelector="metadata.name=a")

    listed = answer.made
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert int(listed["metadata"]["resourceVersion"]) > 0
    (item,) = listed["items"]
    assert not item.keys() & {"kind", "apiVersion"}


async def test_an_empty_list_has_no_items_rather_than_null(api: Api):
    assert (await api.list(kinds.LEASE)).made["items"] == []


async def test_a_list_of_all_namespaces_holds_this_one(api: Api):
    made = await api.make(kinds.LEASE, named("l", spec={}))
    answer = await api.ask("GET", kinds.LEASE.collection_path(None), fieldSelector="metadata.name=l")

    found = {(each["metadata"]["namespace"], each["metadata"]["uid"]) for each in answer.made["items"]}
    assert (api.namespace, made["metadata"]["uid"]) in found


async def test_a_list_of_a_namespace_that_is_not_there_is_empty(api: Api):
    answer = await api.ask("GET", kinds.CONFIG_MAP.collection_path(api.unique("missing")))

    assert answer.made["items"] == []


async def three_teams(api: Api) -> None:
    await api.make(kinds.CONFIG_MAP, labelled(config_map("a"), team="red", size="1"))
    await api.make(kinds.CONFIG_MAP, labelled(config_map("b"), team="blue"))
    await api.make(kinds.CONFIG_MAP, labelled(config_map("c"), size="2"))


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("team=red", "a"),
        ("team==red", "a"),
        ("team!=red,size", "c"),
        ("team in (red, blue)", "a b"),
        ("team notin (red),team", "b"),
        ("!team,size", "c"),
        ("team,!size", "b"),
        ("size>1", "c"),
        ("size<2", "a"),
        ("team=", ""),
        ("team=red,team=blue", ""),
    ],
)
async def test_labels_select(api: Api, selector: str, names: str):
    await three_teams(api)

    assert " ".join(await api.names(kinds.CONFIG_MAP, labelSelector=selector)) == names


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("metadata.name=a", "a"),
        ("metadata.name==a", "a"),
        ("metadata.name=a,metadata.name=b", ""),
        ("metadata.namespace=elsewhere", ""),
    ],
)
async def test_fields_select(api: Api, selector: str, names: str):
    await three_teams(api)

    assert " ".join(await api.names(kinds.CONFIG_MAP, fieldSelector=selector)) == names


async def test_labels_and_fields_select_together(api: Api):
    await three_teams(api)

    assert await api.names(kinds.CONFIG_MAP, fieldSelector="metadata.name!=a", labelSelector="team") == ["b"]


async def test_pods_are_selected_by_node_and_phase(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod("here", nodeName="n1"))
    await api.make(kinds.POD, pod("there", nodeName="n2"))
    await api.make(kinds.POD, pod("nowhere"))
    await api.patch(kinds.POD, "there", {"status": {"phase": "Running"}}, subresource="status")

    async def names(selector: str) -> list[str]:
        return await api.names(kinds.POD, fieldSelector=selector)

    assert await names("spec.nodeName=n1") == ["here"]
    assert await names("spec.nodeName=") == ["nowhere"]
    assert await names("spec.nodeName!=n1,status.phase!=Pending") == ["there"]
    assert await names("status.phase=Running") == ["there"]
    for selector in ("spec.restartPolicy=Always", "spec.schedulerName=default-scheduler", "spec.hostNetwork=false"):
        assert await names(selector) == ["here", "nowhere", "there"], selector
    assert await names("spec.serviceAccountName=default,status.podIP=,status.nominatedNodeName=") == [
        "here",
        "nowhere",
        "there",
    ]


async def test_nodes_namespaces_and_secrets_have_fields_of_their_own(api: Api):
    node = api.unique("n")
    await api.make(kinds.NODE, named(node, spec={"unschedulable": True}))
    await api.make(kinds.SECRET, named("s", type="example.com/x"))
    await api.make(kinds.SECRET, named("t"))

    assert node in await api.names(kinds.NODE, fieldSelector="spec.unschedulable=true")
    assert node not in await api.names(kinds.NODE, fieldSelector="spec.unschedulable=false")
    assert api.namespace in await api.names(kinds.NAMESPACE, fieldSelector="status.phase=Active")
    assert await api.names(kinds.SECRET, fieldSelector="type=example.com/x") == ["s"]


async def test_services_are_selected_by_address_and_type(api: Api):
    ports = [{"port": 80, "protocol": "TCP", "targetPort": 80}]
    await api.make(SERVICE, named("headless", spec={"clusterIP": "None", "ports": ports}))
    await api.make(SERVICE, named("outside", spec={"type": "ExternalName", "externalName": "example.com"}))

    assert await api.names(SERVICE, fieldSelector="spec.clusterIP=None") == ["headless"]
    assert await api.names(SERVICE, fieldSelector="spec.clusterIP!=None") == ["outside"]
    assert await api.names(SERVICE, fieldSelector="spec.type=ExternalName") == ["outside"]


@pytest.mark.parametrize(
    ("path", "selector"),
    [
        ("/api/v1/replicationcontrollers", "status.replicas=0"),
        ("/apis/batch/v1/jobs", "status.successful=7"),
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", "spec.signerName=example.com/none"),
        ("/apis/certificates.k8s.io/v1/podcertificaterequests", "spec.nodeName=n,spec.podName=p,spec.signerName=s"),
        ("/apis/resource.k8s.io/v1/resourceslices", "spec.nodeName=n,spec.driver=d,spec.pool.name=p"),
    ],
)
async def test_kinds_that_are_only_stored_have_fields_of_their_own(api: Api, path: str, selector: str):
    assert (await api.ask("GET", path, fieldSelector=selector)).made["items"] == []


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/api/v1/services", "field label not supported: spec.foo"),
        ("/api/v1/replicationcontrollers", "field label not supported: spec.foo"),
        ("/apis/batch/v1/jobs", 'field label "spec.foo" not supported for Job'),
        ("/apis/certificates.k8s.io/v1/certificatesigningrequests", "field label not supported: spec.foo"),
        (
            "/apis/resource.k8s.io/v1/resourceslices",
            "field label not supported for resource.k8s.io/v1, Kind=ResourceSlice: spec.foo",
        ),
    ],
)
async def test_kinds_that_are_only_stored_refuse_other_fields(api: Api, path: str, message: str):
    (await api.ask("GET", path, fieldSelector="spec.foo=1")).is_refused(400, "BadRequest", message)


async def test_events_are_selected_by_what_they_are_about(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("old", api.namespace))
    await api.make(kinds.EVENT, new_event("new", api.namespace))

    assert await api.names(kinds.CORE_EVENT, fieldSelector="involvedObject.name=p,involvedObject.kind=Pod") == [
        "new",
        "old",
    ]
    assert await api.names(kinds.EVENT, fieldSelector="regarding.name=p,reportingController=example.com/tests") == [
        "new"
    ]
    assert await api.names(kinds.CORE_EVENT, fieldSelector="involvedObject.uid=none") == []
    assert await api.names(kinds.CORE_EVENT, fieldSelector="reason=Tested,type=Normal,source=") == ["old"]
    assert await api.names(kinds.CORE_EVENT, fieldSelector="source=example.com/tests") == ["new"]


async def test_a_field_that_cannot_select_is_refused(api: Api):
    answer = await api.list(kinds.CONFIG_MAP, fieldSelector="data.a=b")

    message = '"data.a" is not a known field selector: only "metadata.name", "metadata.namespace"'
    answer.is_refused(400, "BadRequest", message)


@pytest.mark.parametrize("kind", [kinds.POD, kinds.NODE, kinds.SECRET, kinds.CORE_EVENT, kinds.EVENT], ids=str)
async def test_kinds_with_fields_of_their_own_refuse_others_in_other_words(api: Api, kind: Kind):
    answer = await api.list(kind, fieldSelector="spec.foo=1")

    answer.is_refused(400, "BadRequest", "field label not supported: spec.foo")


@pytest.mark.parametrize("selector", ["a b", "a in", "a in (b", "!", "a=b=c", "=", "A/B/C=d", "a>x"])
async def test_a_label_selector_that_cannot_be_read_is_refused(api: Api, selector: str):
    (await api.list(kinds.CONFIG_MAP, labelSelector=selector)).says(400, "BadRequest", "")


@pytest.mark.parametrize("selector", ["metadata.name", "a", "metadata.name>1", "=x"])
async def test_a_field_selector_that_cannot_be_read_is_refused(api: Api, selector: str):
    (await api.list(kinds.CONFIG_MAP, fieldSelector=selector)).says(400, "BadRequest", "")


async def seven(api: Api) -> list[str]:
    names = [f"l{number}" for number in range(7)]
    for name in names:
        await api.make(kinds.LEASE, named(name, spec={}))
    return names


async def test_pages_together_are_the_whole_list(api: Api):
    names = await seven(api)
    first = (await api.list(kinds.LEASE, limit="3")).made
    assert first["metadata"]["remainingItemCount"] == 4
    second = (await api.list(kinds.LEASE, limit="3", **{"continue": first["metadata"]["continue"]})).made
    assert second["metadata"]["remainingItemCount"] == 1
    third = (await api.list(kinds.LEASE, limit="3", **{"continue": second["metadata"]["continue"]})).made

    pages = [[item["metadata"]["name"] for item in page["items"]] for page in (first, second, third)]
    assert pages == [names[:3], names[3:6], names[6:]]
    assert not third["metadata"].keys() & {"continue", "remainingItemCount"}
    versions = {page["metadata"]["resourceVersion"] for page in (first, second, third)}
    assert len(versions) == 1


async def test_later_pages_show_what_was_there_at_the_first(api: Api):
    names = await seven(api)
    first = (await api.list(kinds.LEASE, limit="3")).made
    await api.delete(kinds.LEASE, "l4")
    await api.make(kinds.LEASE, named("l55", spec={}))
    rest = (await api.list(kinds.LEASE, **{"continue": first["metadata"]["continue"]})).made

    assert [item["metadata"]["name"] for item in rest["items"]] == names[3:]


async def test_a_selected_list_does_not_tell_how_many_remain(api: Api):
    await seven(api)
    page = (await api.list(kinds.LEASE, limit="3", fieldSelector="metadata.name!=l0")).made

    assert page["metadata"]["continue"]
    assert "remainingItemCount" not in page["metadata"]
    assert [item["metadata"]["name"] for item in page["items"]] == ["l1", "l2", "l3"]


async def test_the_limit_is_ignored_where_any_version_will_do(api: Api):
    await seven(api)

    async def some(version: str) -> list[dict]:
        return (await api.list(kinds.LEASE, limit="3", resourceVersion=version)).made["items"]

    assert len(await some("0")) in {0, 1, 2, 4, 5, 6, 7}


async def test_the_client_follows_pages(api: Api):
    names = await seven(api)
    listed = await api.client.list(kinds.LEASE, Selection(api.namespace), page=2)

    assert [item["metadata"]["name"] for item in listed.items] == names


@pytest.mark.parametrize("token", ["nonsense", "e30", "!!", "eyJ2IjoibWV0YS5rOHMuaW8vdjEifQ"])
async def test_a_continue_token_that_is_none_is_refused(api: Api, token: str):
    await seven(api)

    (await api.list(kinds.LEASE, limit="3", **{"continue": token})).says(400, "BadRequest", "continue")


async def test_a_version_and_a_continue_token_exclude_each_other(api: Api):
    await seven(api)
    token = (await api.list(kinds.LEASE, limit="3")).made["metadata"]["continue"]
    answer = await api.list(kinds.LEASE, limit="3", resourceVersion="5", **{"continue": token})

    answer.says(400, "BadRequest", "specifying resource version is not allowed when using continue")


async def test_a_list_can_be_had_exactly_as_it_was(api: Api):
    await api.make(kinds.LEASE, named("a", spec={}))
    version = (await api.list(kinds.LEASE)).made["metadata"]["resourceVersion"]
    await api.make(kinds.LEASE, named("b", spec={}))
    then = (await api.list(kinds.LEASE, resourceVersion=version, resourceVersionMatch="Exact")).made

    assert [item["metadata"]["name"] for item in then["items"]] == ["a"]
    assert then["metadata"]["resourceVersion"] == version


async def test_a_list_is_never_older_than_asked_for(api: Api):
    made = await api.make(kinds.LEASE, named("a", spec={}))
    version = made["metadata"]["resourceVersion"]
    now = (await api.list(kinds.LEASE, resourceVersion=version, resourceVersionMatch="NotOlderThan")).made

    assert [item["metadata"]["name"] for item in now["items"]] == ["a"]
    assert int(now["metadata"]["resourceVersion"]) >= int(version)


async def test_how_a_version_is_meant_needs_a_version(api: Api):
    answer = await api.list(kinds.LEASE, resourceVersionMatch="Exact")

    answer.is_invalid(("FieldValueForbidden", "resourceVersionMatch"))
    assert answer.json["message"] == (
        'ListOptions.meta.k8s.io "" is invalid: resourceVersionMatch: Forbidden: '
        "resourceVersionMatch is forbidden unless resourceVersion is provided"
    )


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "5", "resourceVersionMatch": "Fancy"},
        {"sendInitialEvents": "true"},
    ],
    ids=str,
)
async def test_options_that_do_not_go_together_are_invalid(api: Api, query: dict):
    answer = await api.list(kinds.LEASE, **query)

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert answer.json["message"].startswith('ListOptions.meta.k8s.io "" is invalid: ')


@pytest.mark.parametrize("query", [{"resourceVersion": "x"}, {"limit": "x"}, {"limit": "-"}], ids=str)
async def test_options_that_are_no_numbers_are_refused(api: Api, query: dict):
    (await api.list(kinds.LEASE, **query)).says(400, "BadRequest", "")


async def within_seconds(answer: Awaitable[Answer]) -> Answer:
    async with asyncio.timeout(15):
        return await answer


@pytest.mark.parametrize("what", ["get", "list"])
async def test_a_version_that_is_not_yet_reached_is_waited_for_and_then_told(api: Api, what: str):
    if not api.can.waits_gladly:
        pytest.skip("takes three real seconds; in process they are virtual")
    await api.make(kinds.CONFIG_MAP, config_map())
    far = str(int(await api.version()) + 1_000_000)
    asked = {"resourceVersion": far} | ({"resourceVersionMatch": "NotOlderThan"} if what == "list" else {})
    path = api.path(kinds.CONFIG_MAP, "c" if what == "get" else "")
    answer = await within_seconds(api.ask("GET", path, **asked))

    assert (answer.status, answer.json["reason"]) == (504, "Timeout")
    assert answer.json["message"].startswith(f"Timeout: Too large resource version: {far}, current: ")
    details = answer.json["details"]
    assert details["retryAfterSeconds"] == 1
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    assert details["causes"] == [cause]
    assert answer.headers["retry-after"] == "1"


async def test_a_get_may_ask_for_a_version_that_is_there(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())

    for version in ("0", made["metadata"]["resourceVersion"]):
        answer = await api.get(kinds.CONFIG_MAP, "c", resourceVersion=version)
        assert answer.status in ({200, 404} if version == "0" else {200})


async def test_a_version_that_is_no_longer_kept_cannot_be_listed(api: Api):
    version = await forgotten_version(api)
    answer = await api.list(kinds.LEASE, resourceVersion=version, resourceVersionMatch="Exact")

    answer.is_refused(410, "Expired", "The resourceVersion for the provided list is too old.")


async def test_an_expired_continue_token_is_told_with_one_to_go_on_with(api: Api):
    await seven(api)
    token = await forgotten_token(api, after="l2")
    answer = await api.list(kinds.LEASE, limit="3", **{"continue": token})

    assert (answer.status, answer.json["reason"], answer.json["code"]) == (410, "Expired", 410)
    assert answer.json["message"].startswith("The provided continue parameter is too old to display a consistent list")
    again = await api.list(kinds.LEASE, limit="3", **{"continue": answer.json["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in again.made["items"]] == ["l3", "l4", "l5"]


async def test_metadata_alone_can_be_asked_for(api: Api):
    made = await api.make(kinds.CONFIG_MAP, labelled(config_map(a="1"), a="b"))
    one = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    many = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    got = (await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=one)).made
    listed = (await api.ask("GET", api.path(kinds.CONFIG_MAP), accept=many, labelSelector="a=b")).made

    assert got == {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": made["metadata"]}
    assert (listed["kind"], listed["apiVersion"]) == ("PartialObjectMetadataList", "meta.k8s.io/v1")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["c"]
    assert "data" not in listed["items"][0]
