"""First starts that are cut off at any step: the next one continues, and what is told as done is done.

Method: the disk stops the machine before its n-th change, for every n, and so does the store before and after it takes
the cookie. Then power fails, and the bookie starts again.
"""

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

from quire.bookie.identity import (
    BookieFolders,
    Identity,
    hold_folders,
    mark_clean,
    mark_dirty,
    prove_identity,
)
from quire.codec.cookie import Cookie, encode_cookie
from quire.errors import WrongDisk
from quire.metadata import Bookies, Cluster, MetadataStore, StoreSettings, init_cluster, parse_uri
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.runtime import Runtime, read_file, replace_file
from quire.testing import SimHost, Simulation, simulate
from quire.types import BookieId

ID = BookieId("bk1:3181")
FOLDERS = BookieFolders("/data", ("/data/journal", "/fast/journal"))
COOKIE = Cookie(ID, FOLDERS.journals, ("/data",))
CHANGES = ("makedirs", "lock", "create", "rename", "unlink", "sync_directory")
SEEDS = range(60 if os.environ.get("QUIRE_TEST_LONG") else 8)


class StoppingDisk:
    """Another disk, that comes to a halt before its n-th change of a name."""

    def __init__(self, disk: object, *, changes: int) -> None:
        self._disk, self._left = disk, changes
        self.stopped = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._disk, name)
        return self._stopping(call) if name in CHANGES else call

    def _stopping(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def change(*args: object, **options: object) -> object:
            if self._left == 0:
                self.stopped.set()
                await asyncio.Event().wait()
            self._left -= 1
            return await call(*args, **options)

        return change


class StoppingBookies(Bookies):
    """A view of the store in which the writer stops before or after its cookie is created."""

    stop = ""
    stopped: asyncio.Event

    async def create_cookie(self, cookie: Cookie) -> Any:
        version = await super().create_cookie(cookie) if self.stop == "after" else None
        if self.stop:
            self.stopped.set()
            await asyncio.Event().wait()
        return await super().create_cookie(cookie) if version is None else version


async def set_up(sim: Simulation) -> Cluster:
    runtime = sim.host("metadata").runtime
    return await init_cluster(
        MetadataStore(MemoryDriver(MemoryTree(), StoreSettings(), runtime)), parse_uri("memory:"), runtime
    )


def view(cluster: Cluster, sim: Simulation) -> StoppingBookies:
    paths = cluster.paths
    return StoppingBookies(
        cluster.store,
        sim.host("metadata").clock,
        writable_root=paths.writable,
        readonly_root=paths.readonly,
        cookies_root=paths.cookies,
    )


async def life(runtime: Runtime, bookies: Bookies) -> Identity:
    """A whole life of a bookie: the proof, some data, serving, a clean end."""
    async with hold_folders(runtime, FOLDERS):
        identity = await prove_identity(runtime, FOLDERS, bookies, bookie_id=ID, instance_id=None)
        await replace_file(runtime.disk, "/data/checkpoint", b"data")
        await mark_dirty(runtime.disk, FOLDERS)
        await mark_clean(runtime.disk, FOLDERS)
        return identity


async def ended_early(host: SimHost, disk: StoppingDisk, bookies: StoppingBookies) -> bool:
    """Live until something stops the machine, then lose power. False if nothing did."""
    bookies.stopped = disk.stopped
    runtime = Runtime(host.clock, disk, host.runtime.network, host.rng)
    living = host.spawn(life(runtime, bookies))
    stopping = asyncio.create_task(disk.stopped.wait())
    await asyncio.wait([living, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if living.done():
        await living
    await host.crash()
    return disk.stopped.is_set()


async def check_promises(host: SimHost, cluster: Cluster) -> None:
    """FilesBeforeStore: whenever the store has the cookie, every folder has it too."""
    if await cluster.bookies.cookie(ID) is not None:
        for folder in FOLDERS.all:
            assert await read_file(host.disk, f"{folder}/VERSION") == encode_cookie(COOKIE), folder


@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_start_that_was_cut_off_at_any_step_is_continued(seed: int) -> None:
    async def main(sim: Simulation) -> bool:
        host, cluster = sim.host("b1"), await set_up(sim)
        early = await ended_early(host, StoppingDisk(host.disk, changes=changes), view(cluster, sim))
        await check_promises(host, cluster)
        identity = await life(host.runtime, cluster.bookies)
        assert identity.cookie == COOKIE
        await check_promises(host, cluster)
        assert await life(host.runtime, cluster.bookies) == Identity(COOKIE, is_new=False, was_unclean=False)
        return early

    changes = 0
    while simulate(seed * 1000 + changes, main):
        changes += 1
    assert changes > 20, "every step was reached"


@pytest.mark.parametrize("stop", ["before", "after"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_first_start_that_was_cut_off_around_its_cookie_is_continued(seed: int, stop: str) -> None:
    async def main(sim: Simulation) -> None:
        host, cluster = sim.host("b1"), await set_up(sim)
        bookies = view(cluster, sim)
        bookies.stop = stop
        assert await ended_early(host, StoppingDisk(host.disk, changes=1000), bookies)
        assert (await cluster.bookies.cookie(ID) is not None) == (stop == "after")
        await check_promises(host, cluster)
        assert await life(host.runtime, cluster.bookies) == Identity(COOKIE, is_new=True, was_unclean=False)

    simulate(seed, main)


@pytest.mark.parametrize("seed", SEEDS)
def test_of_many_first_starts_of_one_id_exactly_one_wins(seed: int) -> None:
    """Also afterwards: no loser passes for the winner when the winner is down."""

    async def main(sim: Simulation) -> None:
        cluster, hosts = await set_up(sim), [sim.host(f"b{number}") for number in range(4)]
        starts = [host.spawn(life(host.runtime, cluster.bookies)) for host in hosts]
        results = await asyncio.gather(*starts, return_exceptions=True)
        winners = [host for host, result in zip(hosts, results, strict=True) if isinstance(result, Identity)]
        assert len(winners) == 1
        assert all(isinstance(result, Identity | WrongDisk) for result in results), results
        for host in hosts:
            await host.crash()
        for host in hosts:
            if host in winners:
                assert not (await life(host.runtime, cluster.bookies)).is_new
            else:
                with pytest.raises(WrongDisk):
                    await life(host.runtime, cluster.bookies)

    simulate(seed, main)


def test_a_bookie_that_does_not_make_names_durable_would_be_caught() -> None:
    """Otherwise the tests above would prove little."""

    class CarelessDisk(StoppingDisk):
        def __getattr__(self, name: str) -> Any:
            return _nothing if name == "sync_directory" else super().__getattr__(name)

    async def main(sim: Simulation) -> None:
        host, cluster = sim.host("b1"), await set_up(sim)
        bookies = view(cluster, sim)
        bookies.stop = "after"
        assert await ended_early(host, CarelessDisk(host.disk, changes=1000), bookies)
        await check_promises(host, cluster)

    caught = 0
    for seed in SEEDS:
        try:
            simulate(seed, main)
        except FileNotFoundError:
            caught += 1
    assert caught


async def _nothing(_: object) -> None:
    """What a careless bookie does to make names durable."""
