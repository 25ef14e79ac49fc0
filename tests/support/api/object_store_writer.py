"""Writes to an object store until it is killed: `python -m support.api.object_store_writer FOLDER WRITERS`.

Each writer has an object of its own and adds one to its value, again and again. Every acknowledged write is told on
standard output, in one line: the object's name, its value, its revision.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from onenode.apiserver.store.durable_store import durable_store
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import Put, Stored, WriteDecision
from support.api.object_stores import encoded, history_of, pod, value_of

STANDARD_OUTPUT = 1


def one_more(newest: Stored | None, revision: int) -> WriteDecision:
    return Put(encoded(revision, value_of(newest) + 1 if newest else 1))


async def write_for_ever(store: ObjectStore, name: str) -> None:
    while True:
        written = await store.write(pod(name), one_more)
        os.write(STANDARD_OUTPUT, f"{name} {value_of(written)} {written.revision}\n".encode())


async def main(folder: Path, writers: int) -> None:
    async with durable_store(folder, history_of(2_000)) as store:
        await asyncio.gather(*(write_for_ever(store, f"w{n}") for n in range(writers)))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
