"""The watch over a bookie's disks: what it tells, when, and how it ends."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

from quire.bookie.identity import BookieFolders
from quire.bookie.reserve import SpaceReserve
from quire.bookie.space import SpaceSettings, SpaceWatch
from quire.protocol.space import SpaceMode
from quire.testing import SimHost, Simulation, simulate

FOLDERS = BookieFolders("/data", ("/journal",))
CAPACITY = 200_000
SETTINGS = SpaceSettings(free_bytes_min=8_000, reserve_bytes=1_000, check_interval_s=10.0)
WRITABLE, READ_ONLY, CLOSED = SpaceMode


class World:
    """A host with a small disk, a file that fills it, and what the watch told."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.modes: list[SpaceMode] = []
        self.reasons: list[tuple[str, ...]] = []
        self.failures: list[OSError] = []

    async def free(self, count: int) -> None:
        """Leave `count` bytes free."""
        disk = self.host.disk
        async with await disk.create("/filling", replace=True) as file:
            await file.truncate(disk.free_bytes() - count)

    def reserve(self, settings: SpaceSettings = SETTINGS) -> SpaceReserve:
        return SpaceReserve(self.host.disk, FOLDERS.data, bytes_max=settings.reserve_bytes)

    def watch(self, settings: SpaceSettings = SETTINGS, *, reserve: SpaceReserve | None = None) -> SpaceWatch:
        return SpaceWatch(
            self.host.runtime,
            FOLDERS,
            settings,
            reserve=reserve or self.reserve(),
            on_change=self._on_change,
            on_failure=self.failures.append,
        )

    def _on_change(self, mode: SpaceMode, reasons: tuple[str, ...]) -> None:
        self.modes.append(mode)
        self.reasons.append(reasons)


def run(check: Callable[[World], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        host = sim.host("b1")
        host.disk.faults.capacity_bytes = CAPACITY
        for folder in FOLDERS.all:
            await host.disk.makedirs(folder)
        await check(World(host))

    for seed in range(5):
        simulate(seed, main)


def test_a_disk_fills_up_and_is_emptied_again() -> None:
    async def check(world: World) -> None:
        async with world.watch() as watch:
            assert (watch.mode, watch.reasons, world.modes) == (WRITABLE, (), [])
            for free, mode in [(7_999, READ_ONLY), (1_999, CLOSED), (3_000, READ_ONLY), (12_000, WRITABLE)]:
                await world.free(free)
                await asyncio.sleep(SETTINGS.check_interval_s + 1)
                assert watch.mode is mode
        assert world.modes == [READ_ONLY, CLOSED, READ_ONLY, WRITABLE]
        assert all("are free on the disk of /data" in reasons[0] for reasons in world.reasons[:-1])
        assert world.reasons[-1] == ()
        assert world.failures == []

    run(check)


def test_the_mode_is_known_when_the_watch_begins() -> None:
    async def check(world: World) -> None:
        await world.free(5_000)
        async with world.watch() as watch:
            assert (watch.mode, world.modes) == (READ_ONLY, [READ_ONLY])

    run(check)


def test_whoever_cannot_wait_asks_for_a_look() -> None:
    async def check(world: World) -> None:
        async with world.watch() as watch:
            await world.free(5_000)
            assert watch.mode is WRITABLE
            assert await watch.check() is READ_ONLY
            assert world.modes == [READ_ONLY]

    run(check)


def test_an_operator_is_remembered_across_a_power_failure() -> None:
    async def check(world: World) -> None:
        async with world.watch() as watch:
            assert await watch.set_read_only(True, why="replacing a fan") is READ_ONLY
        await world.host.crash()
        async with world.watch() as watch:
            assert watch.mode is READ_ONLY
            assert watch.reasons == ("an operator made the bookie read-only: replacing a fan",)
            assert await watch.set_read_only(False) is WRITABLE
        await world.host.crash()
        async with world.watch() as watch:
            assert watch.mode is WRITABLE
        assert world.modes == [READ_ONLY, READ_ONLY, WRITABLE]

    run(check)


def test_a_disk_that_cannot_be_asked_has_failed() -> None:
    async def check(world: World) -> None:
        async with world.watch() as watch:
            world.host.disk.faults.fail_next("usage", path="/journal", times=5)
            await asyncio.sleep(SETTINGS.check_interval_s + 1)
            assert watch.reasons == ("the disk of /journal failed: Input/output error",)
            await asyncio.sleep(10 * SETTINGS.check_interval_s)
            assert await watch.check() is CLOSED, "a disk that failed is not trusted again"
        assert [error.errno for error in world.failures] == [errno.EIO]
        assert world.modes == [CLOSED]

    run(check)


def test_space_that_is_only_lent_does_not_open_the_bookie() -> None:
    """On a full disk the reserve is a large part of what is free; giving it back must not look like space."""

    async def check(world: World) -> None:
        settings = SpaceSettings(free_bytes_min=1_000, reserve_bytes=2_000)
        reserve = world.reserve(settings)
        async with world.watch(settings, reserve=reserve) as watch:
            await world.free(100)
            assert await watch.check() is CLOSED
            async with reserve.given_back() as lent_bytes:
                assert lent_bytes == 2_000
                assert world.host.disk.free_bytes() == 2_100
                assert await watch.check() is CLOSED
                assert await world.host.disk.listdir("/data") == []
        assert world.modes == [CLOSED]

    run(check)


def test_a_reserve_that_does_not_fit_is_told_and_made_later() -> None:
    async def check(world: World) -> None:
        await world.free(1_500)
        async with world.watch() as watch:
            assert (
                watch.reasons[-1] == "there is no reserve in /data: making it needs 1.953 KiB, and 1.465 KiB are free"
            )
            await world.free(50_000)
            assert await watch.check() is WRITABLE
            assert watch.reasons == ()
            assert await world.host.disk.listdir("/data") == ["reserve"]

    run(check)
