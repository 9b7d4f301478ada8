"""Entries that are damaged on the disks of bookies, as clients of read proxies meet them."""

import pytest

from quire.errors import DamagedEntry
from quire.stream.reader import StreamReader
from quire.testing import SimBookie
from quire.types import DLSN
from tests.simulation.serving.world import Serving, serve


def mark(number: int) -> bytes:
    return b"record %03d." % number


async def written(world: Serving, *counts: int, first: int = 0) -> list[DLSN]:
    """Records in so many segments, each an entry; the bookies have them in their entry logs and nowhere else."""
    places: list[DLSN] = []
    for count in counts:
        async with world.direct.open_writer("s") as writer:
            for _ in range(count):
                places.append(await writer.append(mark(first + len(places))))
    for bookie in world.bookies:
        await bookie.stop()
        await bookie.start()
    return places


def rot(bookie: SimBookie, number: int) -> None:
    """Flip a bit of a record, in each entry log that has it."""
    disk, count = bookie.host.disk, 0
    for path in disk.sizes("/data/entries"):
        at = bytes(disk._content(path).visible[:]).find(mark(number))
        if at >= 0:
            disk.flip_bit(path, at)
            count += 1
    assert count > 0


async def taken(reader: StreamReader, numbers: list[int]) -> None:
    for number in numbers:
        assert (await anext(reader)).payload == mark(number)


@pytest.mark.parametrize("damaged", [0, 7, 10, 14])
def test_damage_of_all_copies_is_told_at_once_and_passed_over_on_demand(damaged: int) -> None:
    """In the middle of a segment, and at the beginning of the first and of the next one."""

    async def check(world: Serving) -> None:
        places = await written(world, 10, 5)
        for bookie in world.bookies:
            rot(bookie, damaged)
        async with world.client() as client:
            began_s = world.now_s
            async with client.open_reader("s") as reader:
                await taken(reader, [*range(damaged)])
                with pytest.raises(DamagedEntry, match=f"entry {places[damaged].entry_id} of segment"):
                    await anext(reader)
            assert world.now_s - began_s < 5.0
            async with client.open_reader("s", skip_damaged=True) as reader:
                await taken(reader, [number for number in range(15) if number != damaged])
                async with world.direct.open_writer("s") as writer:
                    await writer.append(mark(15))
                await taken(reader, [15])
                assert reader.statistics().damaged_entries == 1
            assert world.now_s - began_s < 15.0

    serve(check)


def test_a_reader_at_the_tail_is_told_of_damage_that_comes_to_it() -> None:
    """The proxy is cut off from the bookies until what it has not read yet is damaged on all disks."""

    async def check(world: Serving) -> None:
        await written(world, 10)
        async with world.client() as client, client.open_reader("s") as reader:
            await taken(reader, [*range(10)])
            for bookie in world.bookies:
                world.sim.network.partition("r0", bookie.host.name)
            await written(world, 5, first=10)
            for bookie in world.bookies:
                rot(bookie, 12)
            world.sim.network.heal()
            await taken(reader, [10, 11])
            began_s = world.now_s
            with pytest.raises(DamagedEntry):
                await anext(reader)
            assert world.now_s - began_s < 5.0

    serve(check)


def test_a_damaged_copy_is_no_damage_while_others_cannot_be_reached() -> None:
    async def check(world: Serving) -> None:
        await written(world, 10)
        rot(world.bookies[0], 5)
        for bookie in world.bookies[1:]:
            world.sim.network.partition("r0", bookie.host.name)
        async with world.client() as client, client.open_reader("s") as reader:
            await taken(reader, [*range(5)])
            assert await reader.read_many(1, timeout_s=15.0) == []
            world.sim.network.heal()
            await taken(reader, [*range(5, 10)])

    serve(check)
