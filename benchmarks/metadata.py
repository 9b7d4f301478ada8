"""Operations of a metadata store: one after the other, and many at once."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from quire.metadata import ANY_VERSION, MetadataStore, open_store
from quire.runtime import real_runtime
from quire.values import dataclass

_TASKS: Final = 32  # Calls under way at once in the concurrent measurements.


@dataclass(frozen=True, slots=True)
class Measured:
    operation: str
    count: int
    cpu_us_each: float
    wall_us_each: float


async def bench_metadata(uri: str, count: int) -> list[Measured]:
    async with open_store(uri) as store:
        root = f"/bench-{real_runtime().rng.uuid().hex}"
        await store.create(root)
        try:
            return [
                await _watch_delay(uri, store, f"{root}/watched", min(count, 50)),
                await _timed("create", count, 1, _creates(store, f"{root}/one-")),
                await _timed("get", count, 1, _gets(store, f"{root}/one-")),
                await _timed("compare-and-swap", count, 1, _swaps(store, f"{root}/one-")),
                await _timed(f"create, {_TASKS} at once", count, _TASKS, _creates(store, f"{root}/many-")),
                await _timed(f"get, {_TASKS} at once", count, _TASKS, _gets(store, f"{root}/many-")),
                await _timed(f"compare-and-swap, {_TASKS} at once", count, _TASKS, _swaps(store, f"{root}/many-")),
            ]
        finally:
            await store.delete_tree(root)


Operation = Callable[[int], Awaitable[object]]


def _creates(store: MetadataStore, prefix: str) -> Operation:
    return lambda number: store.create(f"{prefix}{number}", b"x" * 100)


def _gets(store: MetadataStore, prefix: str) -> Operation:
    return lambda number: store.get(f"{prefix}{number}")


def _swaps(store: MetadataStore, prefix: str) -> Operation:
    async def swap(number: int) -> None:
        node = await store.get(f"{prefix}{number}")
        await store.set(f"{prefix}{number}", b"y" * 100, expected=node.stat.version)

    return swap


async def _watch_delay(uri: str, store: MetadataStore, path: str, count: int) -> Measured:
    """From a write's return to the waking of a watch, on another handle where the store can be opened twice."""
    await store.create(path)
    async with open_store(uri) as second:
        watcher = second if await second.exists(path) else store
        cpu, waited = time.process_time(), 0.0
        async with watcher.watch(path) as watch:
            for number in range(count):
                await store.set(path, b"%d" % number, expected=ANY_VERSION)
                written = time.perf_counter()
                await watch.wait_changed()
                while (await watcher.get(path)).data != b"%d" % number:  # Woken for an earlier write.
                    await watch.wait_changed()
                waited += time.perf_counter() - written
        return Measured("watch wakes", count, (time.process_time() - cpu) / count * 1e6, waited / count * 1e6)


async def _timed(name: str, count: int, tasks: int, operation: Operation) -> Measured:
    async def share(first: int) -> None:
        for number in range(first, count, tasks):
            await operation(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(share(first) for first in range(tasks)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return Measured(name, count, cpu / count * 1e6, wall / count * 1e6)
