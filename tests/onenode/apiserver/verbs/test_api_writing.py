"""Creating, replacing and patching objects through the API."""

from __future__ import annotations

import pytest

from support.api.api_servers import TestServer, api_server

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
CLAIMS = "/api/v1/namespaces/default/persistentvolumeclaims"


def named(name: str, **fields: object) -> dict:
    return {"metadata": {"name": name}, **fields}


def claim(name: str = "c", **spec: object) -> dict:
    wanted = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, **spec}
    return named(name, spec=wanted)


async def refused(server: TestServer, *request: object, code: int, **options: str) -> dict:
    answer = await server.ask(*request, **options)
    assert answer.status == code, answer.body
    assert answer.body["kind"] == "Status"
    assert answer.body["code"] == code
    return answer.body


async def test_the_server_names_places_and_dates_a_new_object_and_ignores_what_is_its_own_to_say():
    async with api_server() as server:
        given = {"name": "a", "uid": "mine", "creationTimestamp": "2000-01-01T00:00:00Z", "generation": 7}
        made = (await server.ask("POST", MAPS, {"metadata": given})).body["metadata"]
        assert made["namespace"] == "default"
        assert made["uid"] != "mine"
        assert not made["creationTimestamp"].startswith("2000")
        assert "generation" not in made
        assert int(made["resourceVersion"]) > 0


async def test_a_generated_name_is_what_was_asked_for_and_five_letters():
    async with api_server() as server:
        long = "x" * 70
        names = [
            (await server.ask("POST", MAPS, {"metadata": {"generateName": long}})).body["metadata"]["name"]
            for _ in range(3)
        ]
        assert len(set(names)) == 3
        assert all(name.startswith("x" * 58) and len(name) == 63 for name in names)


async def test_when_every_generated_name_is_taken_the_client_may_try_again():
    async with api_server() as server:
        server.server._verbs.creator._runtime.random.choices = lambda letters, k: ["b"] * k
        assert (await server.ask("POST", MAPS, {"metadata": {"generateName": "a-"}})).status == 201
        status = await refused(server, "POST", MAPS, {"metadata": {"generateName": "a-"}}, code=409)
        assert status["message"].endswith("the server was not able to generate a unique name for the object")
        assert status["details"]["retryAfterSeconds"] == 1


@pytest.mark.parametrize(
    ("body", "code", "words"),
    [
        (b"{", 400, "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind"),
        (b"[" * 100_000, 400, "the object provided is unrecognized"),
        (b"[]", 400, "cannot be handled as a ConfigMap"),
        ({"kind": "Pod", "apiVersion": "v1"}, 400, 'Pod in version "v1" cannot be handled as a ConfigMap'),
        ({"kind": "Cake", "apiVersion": "v1"}, 400, 'no kind "Cake" is registered for version "v1"'),
        ({"kind": 3}, 400, "unrecognized"),
        ({"metadata": {"name": 3}}, 400, 'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot'),
        (
            {"metadata": {"name": "a", "namespace": "other"}},
            400,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        ({"metadata": {"name": "A_"}}, 422, 'ConfigMap "A_" is invalid: metadata.name: Invalid value: "A_"'),
        ({}, 422, "metadata.name: Required value: name or generateName is required"),
        ({"metadata": {"name": "a", "resourceVersion": "5"}}, 500, "resourceVersion should not be set on objects"),
    ],
)
async def test_a_body_that_is_no_new_object(body: object, code: int, words: str):
    async with api_server() as server:
        assert words in (await refused(server, "POST", MAPS, body, code=code))["message"]


async def test_an_invalid_object_is_refused_with_the_path_of_each_fault():
    async with api_server() as server:
        status = await refused(server, "POST", "/api/v1/persistentvolumes", named("x"), code=422)
        assert status["details"]["kind"] == "PersistentVolume"
        assert {"reason": "FieldValueRequired", "message": "Required value", "field": "spec.capacity"} in status[
            "details"
        ]["causes"]


async def test_unknown_and_repeated_fields_are_warned_of_or_refused_or_passed_over():
    async with api_server() as server:
        body = b'{"metadata":{"name":"a"},"foo":1,"data":{"k":"1","k":"2"}}'
        strict = await refused(server, "POST", f"{MAPS}?fieldValidation=Strict", body, code=400)
        assert strict["message"].endswith('strict decoding error: unknown field "foo", duplicate field "data.k"')
        warned = await server.ask("POST", MAPS, body)
        assert warned.headers["warning"] == '299 - "unknown field \\"foo\\"", 299 - "duplicate field \\"data.k\\""'
        assert warned.body["data"] == {"k": "2"}
        ignored = await server.ask("POST", f"{MAPS}?fieldValidation=Ignore", body.replace(b'"a"', b'"b"'))
        assert "warning" not in ignored.headers


async def test_warnings_fit_into_a_header_whatever_was_sent():
    async with api_server() as server:
        body = {"metadata": {"name": "a"}, **{f"{number}{'x' * 10_000}": 1 for number in range(100)}}
        warned = await server.ask("POST", MAPS, body)
        assert warned.status == 201
        assert len(warned.headers["warning"]) < 8190


async def test_a_number_too_large_for_a_double_is_no_object_and_no_patch():
    async with api_server() as server:
        body = b'{"metadata":{"name":"a","managedFields":[{"fieldsV1":{"a":1e999}}]}}'
        assert "too large" in (await refused(server, "POST", MAPS, body, code=400))["message"]


async def test_a_dry_run_judges_and_changes_nothing():
    async with api_server() as server:
        made = await server.ask("POST", f"{MAPS}?dryRun=All", named("a"))
        assert made.status == 201
        assert "resourceVersion" not in made.body["metadata"]
        await refused(server, "GET", f"{MAPS}/a", code=404)
        await refused(server, "POST", f"{MAPS}?dryRun=All", named("A_"), code=422)
        before = (await server.ask("POST", MAPS, named("a"))).body
        await refused(server, "POST", f"{MAPS}?dryRun=All", named("a"), code=409)
        changed = await server.ask("PUT", f"{MAPS}/a?dryRun=All", named("a", data={"k": "v"}))
        assert changed.body["data"] == {"k": "v"}
        await server.ask("DELETE", f"{MAPS}/a?dryRun=All")
        assert (await server.ask("GET", f"{MAPS}/a")).body == before


async def test_a_change_that_changes_nothing_keeps_the_version():
    async with api_server() as server:
        before = (await server.ask("POST", MAPS, named("a", data={"k": "v"}))).body
        revision = server.store.revision
        await server.ask("PATCH", f"{MAPS}/a", {"data": {"k": "v"}}, content_type=MERGE)
        await server.ask("PUT", f"{MAPS}/a", before)
        await server.ask("PUT", f"{MAPS}/a", named("a", data={"k": "v"}))
        assert server.store.revision == revision
        assert (await server.ask("GET", f"{MAPS}/a")).body == before


async def test_what_no_replacement_can_change():
    async with api_server() as server:
        made = (await server.ask("POST", MAPS, named("a"))).body
        status = await refused(server, "PUT", f"{MAPS}/b", made, code=400)
        assert status["message"] == "the name of the object (a) does not match the name on the URL (b)"
        other = {**made, "metadata": {**made["metadata"], "uid": "u"}}
        status = await refused(server, "PUT", f"{MAPS}/a", other, code=409)
        uid = made["metadata"]["uid"]
        assert status["message"] == (
            'Operation cannot be fulfilled on configmaps "a": StorageError: invalid object, Code: 4, '
            "Key: /registry/configmaps/default/a, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
            f"UID in precondition: u, UID in object meta: {uid}"
        )
        moved = {**made, "metadata": {**made["metadata"], "creationTimestamp": "2000-01-01T00:00:00Z"}}
        assert (await server.ask("PUT", f"{MAPS}/a", moved)).body == made


async def test_a_replacement_without_a_version_overwrites_unless_its_kind_demands_one():
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        assert (await server.ask("PUT", f"{MAPS}/a", named("a", data={"k": "1"}))).status == 200
        await server.ask("POST", LEASES, named("l"))
        status = await refused(server, "PUT", f"{LEASES}/l", named("l", spec={"holderIdentity": "x"}), code=422)
        assert status["message"] == (
            'leases.coordination.k8s.io "l" is invalid: '
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        )
        assert status["details"]["kind"] == "leases"


async def test_only_some_kinds_are_made_by_replacing_what_is_not_there():
    async with api_server() as server:
        await refused(server, "PUT", f"{MAPS}/a", named("a"), code=404)
        made = await server.ask("PUT", f"{LEASES}/l", named("l"))
        assert made.status == 201
        assert made.body["metadata"]["uid"]


async def test_a_patch_of_each_type():
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a", data={"k": "1"}))
        merged = await server.ask("PATCH", f"{MAPS}/a", {"data": {"k": None, "l": "2"}}, content_type=MERGE)
        assert merged.body["data"] == {"l": "2"}
        operations = [{"op": "test", "path": "/data/l", "value": "2"}, {"op": "add", "path": "/data/m", "value": "3"}]
        assert (await server.ask("PATCH", f"{MAPS}/a", operations, content_type=JSON_PATCH)).body["data"] == {
            "l": "2",
            "m": "3",
        }
        finalizers = {"metadata": {"finalizers": ["x/a"]}}
        await server.ask("PATCH", f"{MAPS}/a", finalizers, content_type=STRATEGIC)
        more = {"metadata": {"finalizers": ["x/b"]}}
        result = await server.ask("PATCH", f"{MAPS}/a", more, content_type=STRATEGIC)
        assert sorted(result.body["metadata"]["finalizers"]) == ["x/a", "x/b"]


@pytest.mark.parametrize(
    ("body", "content_type", "code", "words"),
    [
        (b"{", MERGE, 400, "error decoding patch"),
        ({}, JSON_PATCH, 400, "invalid JSON patch"),
        ([], MERGE, 400, "invalid JSON patch"),
        ([{"op": "dance", "path": "/a"}], JSON_PATCH, 400, "invalid JSON patch"),
        ([{"op": "remove", "path": "/data/no"}], JSON_PATCH, 422, "the server rejected our request due to an error"),
        ({"data": 7}, MERGE, 422, ' "" is invalid: patch: Invalid value'),
        ({"data": {"$patch": "sideways"}}, STRATEGIC, 500, "unknown patch type"),
        ({"metadata": {"resourceVersion": "1"}}, MERGE, 409, "the object has been modified"),
        ({"metadata": {"name": "b"}}, MERGE, 400, "the name of the object (b) does not match the name on the URL (a)"),
        ({"metadata": {"namespace": "b"}}, MERGE, 400, "the namespace of the provided object does not match"),
        ({"metadata": {"uid": "x"}}, MERGE, 422, "metadata.uid: Invalid value"),
        ({"metadata": {"labels": {"a b": "c"}}}, MERGE, 422, "metadata.labels"),
        ({}, "application/json", 415, "415: Unsupported Media Type"),
        ({}, "application/apply-patch+yaml", 415, "this API server has no server-side apply: use client-side apply ("),
    ],
)
async def test_a_patch_that_is_refused_changes_nothing(body: object, content_type: str, code: int, words: str):
    async with api_server() as server:
        before = (await server.ask("POST", MAPS, named("a", data={"k": "1"}))).body
        status = await refused(server, "PATCH", f"{MAPS}/a", body, code=code, content_type=content_type)
        assert words in status["message"]
        assert (await server.ask("GET", f"{MAPS}/a")).body == before


async def test_a_patch_with_unknown_fields_is_warned_of_or_refused():
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        warned = await server.ask("PATCH", f"{MAPS}/a", {"foo": 1}, content_type=MERGE)
        assert 'unknown field \\"foo\\"' in warned.headers["warning"]
        path = f"{MAPS}/a?fieldValidation=Strict"
        status = await refused(server, "PATCH", path, {"foo": 1}, code=422, content_type=MERGE)
        assert 'strict decoding error: unknown field "foo"' in status["message"]


async def test_patches_from_many_hands_at_once_are_all_applied():
    import asyncio  # noqa: PLC0415

    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        patches = [
            server.ask("PATCH", f"{MAPS}/a", {"data": {f"k{number}": "x"}}, content_type=MERGE) for number in range(50)
        ]
        answers = await asyncio.gather(*patches)
        assert {answer.status for answer in answers} == {200}
        assert len((await server.ask("GET", f"{MAPS}/a")).body["data"]) == 50


async def test_status_and_spec_are_changed_apart():
    async with api_server() as server:
        await server.ask("POST", CLAIMS, claim())
        bound = {"status": {"phase": "Bound"}, "metadata": {"annotations": {"a": "b"}, "labels": {"c": "d"}}}
        result = (await server.ask("PATCH", f"{CLAIMS}/c/status", bound, content_type=MERGE)).body
        assert result["status"]["phase"] == "Bound"
        assert result["metadata"]["annotations"] == {"a": "b"}
        assert result["metadata"]["labels"] == {"c": "d"}
        result = (await server.ask("PATCH", f"{CLAIMS}/c", {"status": {"phase": "Lost"}}, content_type=MERGE)).body
        assert result["status"]["phase"] == "Bound"
        result = await server.ask("PATCH", f"{CLAIMS}/c/status", {"spec": {"volumeName": "v"}}, content_type=MERGE)
        assert "volumeName" not in result.body["spec"]


async def test_the_status_of_an_attachment_leaves_its_metadata_alone():
    async with api_server() as server:
        path = "/apis/storage.k8s.io/v1/volumeattachments"
        spec = {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}
        await server.ask("POST", path, named("va", spec=spec))
        change = {"status": {"attached": True}, "metadata": {"annotations": {"a": "b"}}}
        result = (await server.ask("PATCH", f"{path}/va/status", change, content_type=MERGE)).body
        assert result["status"] == {"attached": True}
        assert "annotations" not in result["metadata"]


async def test_a_claim_that_names_no_class_gets_the_default_one():
    async with api_server() as server:
        annotation = {"storageclass.kubernetes.io/is-default-class": "true"}
        storage_class = {"metadata": {"name": "fast", "annotations": annotation}, "provisioner": "p"}
        await server.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", storage_class)
        assert (await server.ask("POST", CLAIMS, claim())).body["spec"]["storageClassName"] == "fast"
        none = (await server.ask("POST", CLAIMS, claim("d", storageClassName=""))).body
        assert none["spec"]["storageClassName"] == ""
        assert none["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


async def test_a_claim_grows_only_if_its_class_allows_it():
    async with api_server() as server:
        await server.ask("POST", "/apis/storage.k8s.io/v1/storageclasses", {**named("rigid"), "provisioner": "p"})
        await server.ask("POST", CLAIMS, claim(storageClassName="rigid"))
        bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
        await refused(server, "PATCH", f"{CLAIMS}/c", bigger, code=422, content_type=MERGE)
        await server.ask("PATCH", f"{CLAIMS}/c/status", {"status": {"phase": "Bound"}}, content_type=MERGE)
        status = await refused(server, "PATCH", f"{CLAIMS}/c", bigger, code=403, content_type=MERGE)
        assert status["message"].startswith('persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc')
        path = "/apis/storage.k8s.io/v1/storageclasses/rigid"
        await server.ask("PATCH", path, {"allowVolumeExpansion": True}, content_type=MERGE)
        assert (await server.ask("PATCH", f"{CLAIMS}/c", bigger, content_type=MERGE)).status == 200


async def test_a_pod_needs_its_service_account():
    async with api_server() as server:
        pods = "/api/v1/namespaces/default/pods"
        pod = named("p", spec={"containers": [{"name": "c", "image": "i"}]})
        status = await refused(server, "POST", pods, pod, code=403)
        assert status["message"] == (
            'pods "p" is forbidden: error looking up service account default/default: '
            'serviceaccount "default" not found'
        )
        await server.ask("POST", "/api/v1/namespaces/default/serviceaccounts", named("default"))
        made = (await server.ask("POST", pods, pod)).body
        assert made["spec"]["serviceAccountName"] == "default"
        assert made["spec"]["volumes"][0]["name"].startswith("kube-api-access-")
        assert made["metadata"]["generation"] == 1


async def test_a_body_of_more_than_3_mib_is_too_large():
    async with api_server() as server:
        status = await refused(server, "POST", MAPS, b" " * (3 * 1024 * 1024 + 1), code=413)
        assert status["message"] == "Request entity too large: limit is 3145728"


async def test_an_unexpected_failure_is_an_answer_and_a_log_entry(monkeypatch: pytest.MonkeyPatch):
    async with api_server() as server:
        monkeypatch.setattr(server.store, "get", None)
        status = await refused(server, "GET", f"{MAPS}/a", code=500)
        assert status["reason"] == "InternalError"
        assert [message for message, _ in server.told.entries] == ["request failed"]


async def test_pretty_answers_are_for_people():
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        answer = await server.raw("GET", f"{MAPS}/a?pretty=true")
        assert b'\n  "kind": "ConfigMap"' in answer.body
