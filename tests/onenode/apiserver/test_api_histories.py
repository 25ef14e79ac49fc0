"""Random histories through the API: whoever replays a watch, from wherever, ends with the list."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from support.api.api_servers import Events, TestServer, api_server
from support.random_tests import FEW
from support.waiting import HANGS_AFTER

MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
SENTINEL = "zz-"
NAMES = ("a", "b", "c")
SELECTORS = ("", "&labelSelector=team=x", "&labelSelector=team!=x")

Step = tuple[str, str, str]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "label", "data", "hold", "release", "delete", "watch", "watch", "collect"]),
        st.sampled_from(NAMES),
        st.sampled_from(["x", "y", ""]),
    ),
    max_size=25,
)


@dataclass
class Follower:
    """Somebody who listed, and follows from there."""

    selector: str
    state: dict[str, dict]
    version: str
    path: str


async def begin(server: TestServer, selector: str, *, with_state: bool) -> Follower:
    if with_state:
        return Follower(selector, {}, "", f"{MAPS}?watch=true{selector}")
    listed = (await server.ask("GET", f"{MAPS}?limit=500{selector}")).body
    version = listed["metadata"]["resourceVersion"]
    state = {item["metadata"]["name"]: item["metadata"] for item in listed["items"]}
    return Follower(selector, state, version, f"{MAPS}?watch=true&resourceVersion={version}{selector}")


async def follow(follower: Follower, events: Events) -> dict[str, dict]:
    """Checks each event against what he knows, until the sentinel comes."""
    seen = int(follower.version or 0)
    while True:
        event = await events.next()
        metadata = event["object"]["metadata"]
        name, version = metadata["name"], int(metadata["resourceVersion"])
        if follower.version:
            assert version > seen
            seen = version
        if name.startswith(SENTINEL):
            return follower.state
        assert (event["type"] == "ADDED") == (name not in follower.state)
        if event["type"] == "DELETED":
            del follower.state[name]
        else:
            follower.state[name] = metadata


async def apply(server: TestServer, step: Step) -> None:
    what, name, team = step
    path = f"{MAPS}/{name}"

    async def patch(change: dict) -> None:
        await server.ask("PATCH", path, change, content_type=MERGE)

    steps: dict[str, Callable[[], Awaitable[object]]] = {
        "create": lambda: server.ask("POST", MAPS, {"metadata": {"name": name, "labels": {"team": team or "z"}}}),
        "label": lambda: patch({"metadata": {"labels": {"team": team or None}}}),
        "data": lambda: patch({"data": {"k": team or "v"}}),
        "hold": lambda: patch({"metadata": {"finalizers": ["x/y"]}}),
        "release": lambda: patch({"metadata": {"finalizers": None}}),
        "delete": lambda: server.ask("DELETE", path),
        "collect": lambda: server.ask("DELETE", f"{MAPS}?labelSelector=team=x"),
    }
    await steps[what]()


async def run(steps: list[Step]) -> None:
    async with api_server() as server:
        followers = []
        for number, step in enumerate(steps):
            if step[0] == "watch":
                selector = SELECTORS[number % len(SELECTORS)]
                followers.append(await begin(server, selector, with_state=step[2] == ""))
            else:
                await apply(server, step)
        finals = {
            selector: {
                item["metadata"]["name"]: item["metadata"]
                for item in (await server.ask("GET", f"{MAPS}?limit=500{selector}")).body["items"]
            }
            for selector in SELECTORS
        }
        for team in "xq":  # one for each selector; in a list they come last as well
            body = {"metadata": {"name": SENTINEL + team, "labels": {"team": team}}}
            await server.ask("POST", MAPS, body)
        for follower in followers:
            async with server.watch(follower.path) as events:
                state = await asyncio.wait_for(follow(follower, events), HANGS_AFTER)
            assert state == finals[follower.selector], follower


@FEW
@given(STEPS)
def test_whoever_replays_a_watch_ends_with_the_list(steps: list[Step]):
    asyncio.run(run(steps))
