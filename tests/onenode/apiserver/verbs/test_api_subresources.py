"""Bindings, evictions and scales."""

from __future__ import annotations

from support.api.api_servers import TestServer, api_server

PODS = "/api/v1/namespaces/default/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
MERGE = "application/merge-patch+json"


async def make_pod(server: TestServer, name: str = "p", **spec: object) -> dict:
    await server.ask("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": "default"}})
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}], **spec}}
    answer = await server.ask("POST", PODS, body)
    assert answer.status == 201, answer.body
    return answer.body


def binding(**more: object) -> dict:
    return {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n1"}, **more}


async def test_a_pod_is_bound_once():
    async with api_server() as server:
        await make_pod(server)
        answer = await server.ask("POST", f"{PODS}/p/binding", binding())
        assert (answer.status, answer.body["status"], answer.body["code"]) == (201, "Success", 201)
        pod = (await server.ask("GET", f"{PODS}/p")).body
        assert pod["spec"]["nodeName"] == "n1"
        condition = next(one for one in pod["status"]["conditions"] if one["type"] == "PodScheduled")
        assert condition["status"] == "True"
        again = await server.ask("POST", f"{PODS}/p/binding", binding())
        assert again.status == 409
        assert again.body["message"] == (
            'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
        )
        assert again.body["details"]["kind"] == "pods/binding"


async def test_a_binding_is_also_created_as_an_object_of_its_own():
    bindings = PODS.removesuffix("pods") + "bindings"
    async with api_server() as server:
        await make_pod(server)
        answer = await server.ask("POST", bindings, binding())
        assert (answer.status, answer.body["status"]) == (201, "Success")
        assert (await server.ask("GET", f"{PODS}/p")).body["spec"]["nodeName"] == "n1"
        ghost = await server.ask("POST", bindings, binding(metadata={"name": "q"}))
        assert (ghost.status, ghost.body["message"]) == (404, 'pods "q" not found')
        assert (await server.ask("GET", bindings)).status == 405


async def test_a_binding_that_cannot_be():
    async with api_server() as server:
        assert (await server.ask("POST", f"{PODS}/p/binding", binding())).status == 404
        await make_pod(server)
        misnamed = await server.ask("POST", f"{PODS}/p/binding", binding(metadata={"name": "q"}))
        assert misnamed.status == 400
        other = binding(metadata={"name": "p", "uid": "u"})
        assert (await server.ask("POST", f"{PODS}/p/binding", other)).status == 409
        missing = await server.ask("POST", f"{PODS}/p/binding", {"metadata": {"name": "p"}, "target": {}})
        assert missing.body["details"]["causes"][0]["field"] == "target.name"


async def test_an_eviction_deletes_as_its_options_say():
    async with api_server() as server:
        await make_pod(server, nodeName="n")
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
        answer = await server.ask("POST", f"{PODS}/p/eviction", {**body, "deleteOptions": {"gracePeriodSeconds": 7}})
        assert (answer.status, answer.body["status"]) == (201, "Success")
        assert (await server.ask("GET", f"{PODS}/p")).body["metadata"]["deletionGracePeriodSeconds"] == 7


async def test_streams_that_no_kubelet_here_has_are_not_here():
    async with api_server() as server:
        await make_pod(server)
        for part in ("attach", "portforward", "proxy"):
            answer = await server.ask("GET", f"{PODS}/p/{part}")
            assert (answer.status, answer.body["details"]) == (404, {})


async def test_a_scale_changes_replicas_and_nothing_else():
    async with api_server() as server:
        template = {
            "metadata": {"labels": {"app": "a"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        body = {
            "metadata": {"name": "s"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "a"}}, "template": template},
        }
        made = (await server.ask("POST", SETS, body)).body
        scale = (await server.ask("GET", f"{SETS}/s/scale")).body
        assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
        assert scale["spec"] == {"replicas": 2}
        assert scale["status"] == {"replicas": 0, "selector": "app=a"}
        patched = await server.ask("PATCH", f"{SETS}/s/scale", {"spec": {"replicas": 5}}, content_type=MERGE)
        assert patched.body["spec"] == {"replicas": 5}
        now = (await server.ask("GET", f"{SETS}/s")).body
        assert now["spec"] == {**made["spec"], "replicas": 5}
        assert now["metadata"]["generation"] == 2
        stale = await server.ask("PUT", f"{SETS}/s/scale", {**scale, "spec": {"replicas": 1}})
        assert stale.status == 409
        fresh = {**patched.body, "spec": {"replicas": 1}}
        assert (await server.ask("PUT", f"{SETS}/s/scale", fresh)).body["spec"] == {"replicas": 1}
        negative = await server.ask("PATCH", f"{SETS}/s/scale", {"spec": {"replicas": -1}}, content_type=MERGE)
        assert negative.status == 422
        strategic = "application/strategic-merge-patch+json"
        zero = await server.ask("PATCH", f"{SETS}/s/scale", {"spec": {"replicas": 0}}, content_type=strategic)
        assert zero.body["spec"] == {}
