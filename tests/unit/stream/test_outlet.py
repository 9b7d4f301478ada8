"""When entries leave a writer by themselves: kept alive, by the clock; and what a new segment says of its region."""

import asyncio
import struct
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.streams.cluster import SETTINGS, StreamCluster, stream_cluster

from quire.codec.stream.entries import decode_entry, encode_entry
from quire.codec.stream.records import LogRecord
from quire.errors import AppendCancelled, AppendOutcomeUnknown, NoSuchEntry
from quire.stream import segment_writer
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.testing import Simulation, simulate

QUIET = replace(SETTINGS, commit_delay_s=1000.0)  # No control records but those at the ends of segments.
SOON_S = 0.2  # By then bookies have answered.


def play(act: Callable[[StreamCluster, StreamContext], Awaitable[None]], *, encode_region: bool = False) -> None:
    async def main(sim: Simulation) -> None:
        async with stream_cluster(sim) as cluster, cluster.context(encode_region=encode_region) as context:
            await act(cluster, context)

    simulate(1, main)


async def stored_entries(context: StreamContext) -> list[list[LogRecord]]:
    """The records of each entry that bookies have of the only segment, confirmed or not."""
    (stored,) = await StreamNodes(context.store, context.paths("s")).all_segments()
    found: list[list[LogRecord]] = []
    async with context.ledgers.open(stored.segment.ledger_id, recover=False) as ledger:
        try:
            async for entry_id, payload in ledger.read_unconfirmed(0, 1000):
                found.append(decode_entry(payload, lssn=stored.segment.lssn, entry_id=entry_id))
        except NoSuchEntry:
            return found
    raise AssertionError("there are more entries than a test writes")


def payloads(entries: list[list[LogRecord]]) -> list[list[bytes]]:
    return [[record.payload for record in records] for records in entries]


# --- Kept alive


def test_an_idle_writer_sends_a_keepalive_after_the_configured_time_and_not_before() -> None:
    """Method: bookies are asked for what they have, just before the time is over and just after. An append in between
    begins the time anew."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", replace(QUIET, keepalive_s=10.0)) as writer:
            await writer.append(b"a", txid=7)
            await asyncio.sleep(9.0)
            await writer.append(b"b", txid=8)
            await asyncio.sleep(10.0 - SOON_S)
            assert payloads(await stored_entries(context)) == [[b"a"], [b"b"]]
            await asyncio.sleep(2 * SOON_S)
            *_, [kept] = await stored_entries(context)
            assert (kept.payload, kept.is_control, kept.txid, kept.dlsn) == (b"keepalive", True, 8, (1, 2, 0))
            await asyncio.sleep(10.0 - 3 * SOON_S)
            assert len(await stored_entries(context)) == 3
            await asyncio.sleep(3 * SOON_S)
            assert payloads(await stored_entries(context)) == [[b"a"], [b"b"], [b"keepalive"], [b"keepalive"]]

    play(act)


def test_a_writer_that_need_not_keep_alive_sends_nothing_while_it_is_idle() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async with open_stream_writer(context, "s", QUIET) as writer:
            await writer.append(b"a")
            await asyncio.sleep(100.0)
            assert payloads(await stored_entries(context)) == [[b"a"]]

    play(act)


# --- By the clock


def test_the_periodic_policy_sends_nothing_before_its_time_and_then_one_entry() -> None:
    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        settings = replace(QUIET, transmit="periodic", flush_interval_s=2.0)
        async with open_stream_writer(context, "s", settings) as writer:
            await writer.append(b"first")
            before = len(await stored_entries(context))
            for number in range(2):  # Each interval is like the first.
                early = asyncio.create_task(writer.append_many([b"a", b"b"]))
                await asyncio.sleep(1.0)
                late = asyncio.create_task(writer.append(b"c"))
                await asyncio.sleep(1.0 - SOON_S)
                assert not any(append.done() for append in (early, late))
                assert len(await stored_entries(context)) == before + number, "nothing was sent"
                await asyncio.sleep(2 * SOON_S)
                places = [*early.result(), late.result()]
                assert places == [(1, before + number, slot) for slot in range(3)], "all in one entry"
                assert payloads(await stored_entries(context))[before + number :] == [[b"a", b"b", b"c"]]
            await asyncio.sleep(10.0)
            assert len(await stored_entries(context)) == before + 2, "there is nothing to send"

    play(act)


# --- Regions


@pytest.mark.parametrize(("encode_region", "expected"), [(True, 11), (False, 0)])
def test_a_segment_has_its_writers_region_if_the_binding_says_so(encode_region: bool, expected: int) -> None:
    """In bits 28 to 31 of the first word, from its beginning on; it stays when a writer of another region follows."""

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        async def regions() -> list[tuple[bool, int, int]]:
            found = []
            for stored in await StreamNodes(context.store, context.paths("s")).all_segments():
                data = (await context.store.get(context.paths("s").segment(stored.name))).data
                word = int(data.split(b";")[0])
                found.append((stored.segment.completion is None, stored.segment.region, word >> 28 & 15))
            return found

        async with open_stream_writer(context, "s", replace(QUIET, region=11)) as writer:
            await writer.append(b"a")
            assert await regions() == [(True, expected, expected)]
        assert await regions() == [(False, expected, expected)]
        async with open_stream_writer(context, "s", replace(QUIET, region=3)) as writer:
            await writer.append(b"b")
        second = 3 if encode_region else 0
        assert await regions() == [(False, expected, expected), (False, second, second)]

    play(act, encode_region=encode_region)


# --- A bug in it


def test_an_append_whose_entry_cannot_be_made_fails_and_so_do_all_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: encoding the second entry raises what it never should. An append is in flight, one is in that entry, one
    waits behind it."""
    encode, calls = encode_entry, 0

    def broken(*args: Any, **options: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise struct.error("it does not fit")
        return encode(*args, **options)

    async def act(cluster: StreamCluster, context: StreamContext) -> None:
        reported: list[object] = []
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "call_exception_handler", lambda told: reported.append(told["exception"]))
        async with open_stream_writer(context, "s", replace(QUIET, entry_bytes=100)) as writer:
            await writer.append(b"begun")
            monkeypatch.setattr(segment_writer, "encode_entry", broken)
            appends = [asyncio.create_task(writer.append(bytes(90))) for _ in range(3)]
            _, hanging = await asyncio.wait(appends, timeout=60.0)
            assert not hanging
            errors = Counter(type(append.exception()) for append in appends)
            assert errors == {AppendOutcomeUnknown: 2, AppendCancelled: 1}
            with pytest.raises(AppendCancelled, match="it does not fit"):
                await writer.append(b"later")
        assert [type(bug) for bug in reported] == [struct.error]

    play(act)
