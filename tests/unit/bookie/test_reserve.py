"""The reserve: there when it should be, out of the way when it is needed, and nothing that a crash could spoil."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

import pytest

from quire.bookie.reserve import SpaceReserve
from quire.errors import InvalidArgument
from quire.testing import Simulation, simulate
from quire.testing.sim_disk import SimDisk

FOLDER, PATH = "/data", "/data/reserve"
BYTES = 5_000
CAPACITY = 100 * BYTES


def run(check: Callable[[SimDisk], Awaitable[None]], *, seeds: int = 5) -> None:
    async def main(sim: Simulation) -> None:
        disk = sim.host("b1").disk
        disk.faults.capacity_bytes = CAPACITY
        await disk.makedirs(FOLDER)
        await check(disk)

    for seed in range(seeds):
        simulate(seed, main)


async def size_of(disk: SimDisk, path: str = PATH) -> int:
    async with await disk.open(path) as file:
        return await file.size()


async def fill(disk: SimDisk, *, leave: int) -> None:
    async with await disk.create("/filling", replace=True) as file:
        await file.truncate(disk.free_bytes() - leave)


def test_it_is_made_once_and_survives_a_power_failure() -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES)
        await reserve.make()
        assert reserve.problem is None
        disk.crash()
        assert await size_of(disk) == BYTES
        disk.faults.fail_next("create")
        await reserve.make()  # Would raise if it made another one.
        assert disk.free_bytes() == CAPACITY - BYTES

    run(check, seeds=30)


def test_its_space_is_there_for_the_block_and_taken_again_afterwards() -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES)
        await reserve.make()
        await fill(disk, leave=0)
        async with reserve.given_back() as lent_bytes:
            assert lent_bytes == reserve.lent_bytes == disk.free_bytes() == BYTES
            await reserve.make()
            assert disk.free_bytes() == BYTES, "nobody takes it while it is lent"
            await fill(disk, leave=3 * BYTES)
        assert await size_of(disk) == BYTES
        assert reserve.lent_bytes == 0
        assert reserve.problem is None

    run(check)


def test_it_stays_away_while_there_is_no_room() -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES)
        await reserve.make()
        await fill(disk, leave=0)
        async with reserve.given_back():
            pass
        assert not await disk.exists(PATH)
        assert "there is no reserve" in str(reserve.problem)
        async with reserve.given_back() as lent_bytes:
            assert lent_bytes == 0
        await fill(disk, leave=2 * BYTES)
        await reserve.make()
        assert reserve.problem is None
        assert await size_of(disk) == BYTES

    run(check)


@pytest.mark.parametrize("operation", ["preallocate", "create", "sync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_no_error_and_leaves_nothing_behind(operation: str, code: int) -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES)
        disk.faults.fail_next(operation, code=code)  # type: ignore[arg-type]
        await reserve.make()
        assert reserve.problem is not None
        assert await disk.listdir(FOLDER) == []

    run(check)


def test_another_error_of_the_disk_is_raised() -> None:
    async def check(disk: SimDisk) -> None:
        disk.faults.fail_next("sync")
        with pytest.raises(OSError, match="Input/output error"):
            await SpaceReserve(disk, FOLDER, bytes_max=BYTES).make()

    run(check)


def test_several_may_need_it_at_once_and_the_last_one_makes_it_again() -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES)
        await reserve.make()
        release = [asyncio.Event(), asyncio.Event()]

        async def borrow(until: asyncio.Event) -> None:
            async with reserve.given_back():
                assert not await disk.exists(PATH)
                await until.wait()
                assert not await disk.exists(PATH)

        tasks = [asyncio.create_task(borrow(until)) for until in release]
        making = asyncio.create_task(reserve.make())
        release[0].set()
        await tasks[0]
        release[1].set()
        await asyncio.gather(tasks[1], making)
        assert await size_of(disk) == BYTES
        assert reserve.lent_bytes == 0

    run(check, seeds=50)


def test_it_follows_the_setting_and_the_size_of_the_disk() -> None:
    async def check(disk: SimDisk) -> None:
        for bytes_max, size in [(BYTES, BYTES), (10 * BYTES, BYTES), (BYTES - 1, BYTES), (1_000, 1_000)]:
            await SpaceReserve(disk, FOLDER, bytes_max=bytes_max).make()
            assert await size_of(disk) == size
        await SpaceReserve(disk, FOLDER, bytes_max=0).make()
        assert await disk.listdir(FOLDER) == []
        with pytest.raises(InvalidArgument):
            SpaceReserve(disk, FOLDER, bytes_max=-1)

    run(check)


def test_a_crash_at_any_moment_leaves_a_whole_reserve_or_none() -> None:
    """Method: making it and giving it back are cut off at a random moment; the next life cleans up and goes on."""
    left: set[tuple[str, ...]] = set()

    async def main(sim: Simulation) -> None:
        host = sim.host("b1")
        host.disk.faults.capacity_bytes = CAPACITY
        await host.disk.makedirs(FOLDER)

        async def live() -> None:
            reserve = SpaceReserve(host.disk, FOLDER, bytes_max=BYTES)
            while True:
                await reserve.make()
                async with reserve.given_back():
                    pass

        host.spawn(live())
        await asyncio.sleep(sim.rng.random() * 0.05)
        await host.crash()
        names = await host.disk.listdir(FOLDER)
        left.add(tuple(names))
        if "reserve" in names:
            assert await size_of(host.disk) == BYTES
        await SpaceReserve(host.disk, FOLDER, bytes_max=BYTES).make()
        assert await host.disk.listdir(FOLDER) == ["reserve"]
        assert host.disk.free_bytes() == CAPACITY - BYTES

    for seed in range(150):
        simulate(seed, main)
    assert left >= {(), ("reserve",), ("reserve.new",)}, "the crashes met every state"


@pytest.mark.parametrize(
    ("free_bytes", "has_reserve", "room"), [(10, True, True), (10, False, False), (BYTES, False, True)]
)
def test_it_knows_whether_there_is_room_for_as_much(free_bytes: int, has_reserve: bool, room: bool) -> None:
    async def check(disk: SimDisk) -> None:
        reserve = SpaceReserve(disk, FOLDER, bytes_max=BYTES if has_reserve else 0)
        await reserve.make()
        await fill(disk, leave=free_bytes)
        assert await reserve.can_be_had(BYTES) is room
        assert disk.free_bytes() == free_bytes

    run(check)
