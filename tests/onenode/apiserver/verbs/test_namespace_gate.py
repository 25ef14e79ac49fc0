"""Nothing is made in a namespace from the decision to end it until that is settled, whoever waits for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from onenode.apiserver.answers.status_answers import Refusal
from onenode.apiserver.store.store import memory_store
from onenode.apiserver.store.versions import Key
from onenode.apiserver.verbs.namespace_gate import NamespaceGate
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.kinds import CONFIG_MAP, NAMESPACE

NAME = "n"
CONFIG_MAPS = KindInStore(CONFIG_MAP, CONFIG_MAP)


@asynccontextmanager
async def gate() -> AsyncIterator[NamespaceGate]:
    async with memory_store() as store:
        body = json.dumps({"metadata": {"name": NAME}}).encode()
        await store.create(Key(NAMESPACE.resource, "", NAME), lambda _revision: body)
        yield NamespaceGate(store)


def is_open(one: NamespaceGate) -> bool:
    try:
        one.refuse_new_content(CONFIG_MAPS, NAME, "c")
    except Refusal:
        return False
    return True


async def ending(one: NamespaceGate, settled: asyncio.Event) -> None:
    one.close(NAME)
    await settled.wait()


async def some_turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_namespace_stays_closed_though_the_client_that_deletes_it_has_gone():
    async with gate() as one:
        settled = asyncio.Event()
        waiting = asyncio.ensure_future(one.closing(NAME, ending(one, settled)))
        await some_turns()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting
        assert not is_open(one)

        settled.set()
        await some_turns()
        assert is_open(one), "the deletion came to nothing"


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_deletions_under_way_neither_opens_it_for_the_other(first: int):
    async with gate() as one:
        settled = asyncio.Event(), asyncio.Event()
        waiting = []
        for event in settled:
            waiting.append(asyncio.ensure_future(one.closing(NAME, ending(one, event))))
            await some_turns()
            assert not is_open(one)
        settled[first].set()
        await waiting[first]
        await some_turns()
        assert not is_open(one)

        settled[1 - first].set()
        await waiting[1 - first]
        await some_turns()
        assert is_open(one)


async def test_another_deletion_that_begins_does_not_open_it_before_its_own_decision():
    async with gate() as one:
        settled = asyncio.Event()
        first = asyncio.ensure_future(one.closing(NAME, ending(one, settled)))
        await some_turns()
        second = asyncio.ensure_future(one.closing(NAME, settled.wait()))
        await some_turns()
        assert not is_open(one)
        settled.set()
        await asyncio.gather(first, second)
