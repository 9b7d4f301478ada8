"""Batch reads: as many entries as are here without a gap, as are wanted, and as fit."""

import struct
from typing import Any

import pytest

from quire.bookie.settings import ServerSettings
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.errors import DamagedIndex
from quire.types import EntryId
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    WRONG_KEY,
    World,
    bookie_settings,
    entry,
    with_bookie,
)

OK = Status.EOK
ENTRY_BYTES = len(entry(LEDGER, 0))
EVERYTHING = 1 << 20


def batch(first: int, *, count: int = 0, size: int = EVERYTHING, ledger_id: int = LEDGER, **options: Any) -> bytes:
    flags = v2.DO_FENCING if "master_key" in options else 0
    return v2.encode_batch_read_request(
        ledger_id,  # type: ignore[arg-type]
        EntryId(first),
        -77,
        entries_max=count,
        bytes_max=size,
        flags=flags,
        **options,
    )


async def ask(world: World, request: bytes, *, first: int, ledger_id: int = LEDGER) -> tuple[Status, list[int]]:
    """Status and entry ids of the answer, whose ids are the request's."""
    frame = await world.client.ask(request)
    status, *ids, entries = v2.decode_batch_read_response(memoryview(frame)[4:])
    assert ids == [ledger_id, first, -77]
    found = [struct.unpack_from(">q", body, 8)[0] for body in entries]
    assert [bytes(body) for body in entries] == [entry(ledger_id, entry_id) for entry_id in found]
    return status, found


async def fill(world: World, *entry_ids: int) -> None:
    for entry_id in entry_ids:
        await world.client.add(V2, LEDGER, entry_id)


@pytest.fixture(params=["cached", "on disk", "both"])
def place(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


async def fill_at(world: World, place: str, *entry_ids: int) -> None:
    if place == "both":
        half = len(entry_ids) // 2
        await fill(world, *entry_ids[:half])
        await world.restart()
        await fill(world, *entry_ids[half:])
        return
    await fill(world, *entry_ids)
    if place == "on disk":
        await world.restart()


def test_a_batch_ends_at_a_gap(place: str) -> None:
    async def check(world: World) -> None:
        await fill_at(world, place, 0, 1, 2, 3, 5, 6)
        assert await ask(world, batch(0), first=0) == (OK, [0, 1, 2, 3])
        assert await ask(world, batch(2), first=2) == (OK, [2, 3])
        assert await ask(world, batch(5), first=5) == (OK, [5, 6])
        assert await ask(world, batch(4), first=4) == (Status.ENOENTRY, [])
        assert await ask(world, batch(7), first=7) == (Status.ENOENTRY, [])

    with_bookie(check)


def test_a_batch_has_no_more_entries_than_wanted(place: str) -> None:
    async def check(world: World) -> None:
        await fill_at(world, place, *range(10))
        for count, found in [(1, 1), (2, 2), (9, 9), (10, 10), (11, 10), (0, 10), (-1, 10), (-(2**31), 10)]:
            assert await ask(world, batch(0, count=count), first=0) == (OK, list(range(found)))

    with_bookie(check)


def test_a_batch_is_no_larger_than_wanted_but_has_one_entry(place: str) -> None:
    """Each entry takes four bytes more than it has, and the frame around them 36."""

    async def check(world: World) -> None:
        await fill_at(world, place, *range(10))
        each = ENTRY_BYTES + 4
        sizes = [(36 + 3 * each, 3), (36 + 3 * each - 1, 2), (36 + 4 * each - 1, 3), (36 + each, 1)]
        sizes += [(36, 1), (1, 1), (0, 1), (-1, 1), (-(2**63), 1), (2**63 - 1, 10)]
        for size, found in sizes:
            request = batch(0, size=size)
            frame_bytes = len(await world.client.ask(request))
            assert await ask(world, request, first=0) == (OK, list(range(found))), size
            assert frame_bytes == 36 + found * each

    with_bookie(check)


def test_the_bookie_has_a_limit_of_its_own(place: str) -> None:
    async def check(world: World) -> None:
        await fill_at(world, place, *range(10))
        assert await ask(world, batch(0), first=0) == (OK, [0, 1])

    limit = 36 + 2 * (ENTRY_BYTES + 4)
    with_bookie(check, settings=bookie_settings(server=ServerSettings(batch_bytes_max=limit)))


def test_the_first_entry_comes_whatever_its_size() -> None:
    async def check(world: World) -> None:
        large = entry(LEDGER, 0, bytes(5000))
        await world.client.add(V2, LEDGER, 0, large)
        await fill(world, 1)
        frame = await world.client.ask(batch(0, size=100))
        status, *_, entries = v2.decode_batch_read_response(memoryview(frame)[4:])
        assert (status, [bytes(body) for body in entries]) == (OK, [large])

    with_bookie(check)


def test_minus_one_is_the_last_entry_alone(place: str) -> None:
    async def check(world: World) -> None:
        await fill_at(world, place, 0, 1, 2)
        assert await ask(world, batch(-1), first=-1) == (OK, [2])

    with_bookie(check)


def test_the_highest_entry_id_ends_a_batch() -> None:
    async def check(world: World) -> None:
        highest = 2**63 - 1
        await fill(world, highest - 1, highest)
        assert await ask(world, batch(highest - 1), first=highest - 1) == (OK, [highest - 1, highest])
        await world.restart()
        assert await ask(world, batch(highest - 1), first=highest - 1) == (OK, [highest - 1, highest])

    with_bookie(check)


@pytest.mark.parametrize(("ledger_id", "first"), [(LEDGER, -2), (-1, 0), (-1, -1)])
def test_batches_of_what_cannot_be_are_refused(ledger_id: int, first: int) -> None:
    async def check(world: World) -> None:
        await fill(world, 0)
        request = batch(first, ledger_id=ledger_id)
        assert await ask(world, request, first=first, ledger_id=ledger_id) == (Status.EBADREQ, [])

    with_bookie(check)


def test_an_unknown_ledger_has_no_batch() -> None:
    async def check(world: World) -> None:
        assert await ask(world, batch(0), first=0) == (Status.ENOLEDGER, [])
        assert await ask(world, batch(-1), first=-1) == (Status.ENOLEDGER, [])

    with_bookie(check)


def test_a_batch_may_fence(place: str) -> None:
    async def check(world: World) -> None:
        await fill_at(world, place, 0, 1, 2)
        assert await ask(world, batch(0, master_key=WRONG_KEY), first=0) == (Status.EUA, [])
        assert (await world.client.add(V2, LEDGER, 3)).status is OK
        assert await ask(world, batch(1, master_key=KEY), first=1) == (OK, [1, 2, 3])
        assert (await world.client.add(V2, LEDGER, 4)).status is Status.EFENCED
        assert await ask(world, batch(9, master_key=KEY), first=9) == (Status.ENOENTRY, [])

    with_bookie(check)


def test_a_batch_that_fences_waits_for_the_fence_to_be_durable() -> None:
    async def check(world: World) -> None:
        await fill(world, 0, 1)
        world.slow_syncs(3.0)
        began = world.sim.loop.time()
        assert await ask(world, batch(0, master_key=KEY), first=0) == (OK, [0, 1])
        assert world.sim.loop.time() - began >= 3.0

    with_bookie(check)


def test_a_batch_of_another_version_is_refused_in_kind() -> None:
    async def check(world: World) -> None:
        await fill(world, 0)
        request = batch(0)
        answer = await world.client.ask(request[:4] + b"\x05" + request[5:])
        assert struct.unpack(">IBBhiqqq", answer) == (32, 5, v2.BATCH_READ_ENTRY, 0, 103, LEDGER, 0, -77)
        answer = await world.client.ask(request[:4] + b"\x01" + request[5:])
        assert answer[4:8] == b"\x01\x07\x00\x00"
        assert answer[40:] == entry(LEDGER, 0)

    with_bookie(check)


@pytest.mark.parametrize("error", [OSError(5, "simulated"), DamagedIndex("simulated")], ids=["io", "damage"])
def test_an_error_behind_the_first_entry_ends_the_batch(error: OSError | DamagedIndex) -> None:
    """Method: the first entry is in the cache, and nothing else of the ledger can be looked up."""

    async def check(world: World) -> None:
        await fill(world, 1, 2)
        await world.restart()
        await fill(world, 0)
        world.bookie.index.faults.fail_next("read", error, times=1000)
        assert await ask(world, batch(0), first=0) == (OK, [0])
        assert await ask(world, batch(1), first=1) == (Status.EIO, [])
        world.bookie.index.faults.repair()
        assert await ask(world, batch(0), first=0) == (OK, [0, 1, 2])

    with_bookie(check)


def test_many_batches_at_once_are_all_answered() -> None:
    async def check(world: World) -> None:
        await fill(world, *range(60))
        await world.restart()
        world.client.send(*(batch(first, count=7) for first in range(60)))
        seen = []
        for _ in range(60):
            frame = await world.client.frame()
            status, _, first, _, entries = v2.decode_batch_read_response(memoryview(frame)[4:])
            assert (status, len(entries)) == (OK, min(7, 60 - first))
            seen.append(first)
        assert sorted(seen) == list(range(60))

    with_bookie(check)
