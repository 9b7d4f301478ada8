"""Rows of the failure table that are about bookies and metadata, on processes: see `support/servers/served_cluster.py`.

With QUIRE_TEST_LONG what goes wrong lasts longer than everybody's patience.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendOutcomeUnknown, Outcome, ProxyOutcomeUnknown, QuireError
from tests.integration.proxy.authors import Author, following, proven
from tests.support.servers.served_cluster import SESSION_S, Asking, ProxyProcess, Served
from tests.support.streams.served_history import History
from tests.support.waiting import at_a_random_moment, eventually

IS_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
PRODUCER = bytes(range(16))

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("served"), pytest.mark.timeout(900 if IS_LONG else 300)]


@contextmanager
def paused(served: Served, count: int) -> Iterator[None]:
    """So many bookies say nothing; connections to them stay open."""
    bookies = served.cluster.bookies[:count]
    for bookie in bookies:
        bookie.pause()
    try:
        yield
    finally:
        for bookie in bookies:
            bookie.resume()


@contextmanager
def frozen_metadata(served: Served) -> Iterator[None]:
    served.cluster.zookeeper.freeze()
    try:
        yield
    finally:
        served.cluster.zookeeper.thaw()


@contextmanager
def without_storage(proxy: ProxyProcess) -> Iterator[None]:
    """It does not hear from any bookie any more. Others do."""
    for way in proxy.to_storage:
        way.silence()
    try:
        yield
    finally:
        for way in proxy.to_storage:
            way.mend()


async def test_who_asks_again_after_its_deadline_is_told_where_its_record_is(served: Served) -> None:
    """Row 4. The proxy finishes what it began although nobody waits any more. With a producer id the record is found
    when it is sent again; without one the writer is told that nobody knows."""
    stream = "late-answers"
    async with Asking() as asking, served.connect() as client:
        assert (await asking.result(served.writers[0], stream, b"first")).code == pb.OK
        owner = served.writers[0]
        async with (
            served.connect(producer_ids=False, append_timeout_s=0.4) as hasty,
            hasty.open_writer(stream) as writer,
        ):

            async def can_write() -> bool:
                try:
                    await writer.append(b"second")
                except QuireError:  # Its time is short, also for a machine that is busy.
                    return False
                return True

            await eventually(can_write, within_s=30, what="it has found the owner")
            with paused(served, 2):
                with pytest.raises(ProxyOutcomeUnknown):
                    await asking.write(
                        owner, stream, b"once", producer=pb.Producer(id=PRODUCER, first_seq=1), timeout_s=0.3
                    )
                with pytest.raises(AppendOutcomeUnknown) as raised:
                    await writer.append(b"whatever")
                assert raised.value.outcome is Outcome.UNKNOWN
        again = await client.append_once(stream, [b"once"], producer=PRODUCER, first_seq=1)
        assert again.is_duplicate
        assert (await client.append_once(stream, [b"once"], producer=PRODUCER, first_seq=1)).dlsns == again.dlsns
    stored = await served.stored(stream)
    assert [record.dlsn for record in stored if record.payload == b"once"] == list(again.dlsns)
    payloads = [record.payload for record in stored]
    assert payloads[:2] == [b"first", b"second"]
    assert payloads.count(b"whatever") <= 1


async def test_one_bookie_that_says_nothing_is_not_noticed(served: Served) -> None:
    """Row 5. Two of three are enough, for writers and for readers: nothing fails, and nothing is written anew."""
    history, stream = History(), "slow-bookie"
    author = Author(history, stream)
    async with served.connect() as client, client.open_writer(stream) as writer:
        await author.append(writer)
        with paused(served, 1):
            async with following(history, client, stream):
                for _ in range(30):
                    await author.append(writer, 3)
                    await at_a_random_moment(1.0 if IS_LONG else 0.0, 1.0)
                await client.seal_stream(stream)
    await proven(served, history)


async def test_without_an_ack_quorum_nothing_is_acknowledged_and_the_old_can_be_read(served: Served) -> None:
    """Row 6. Two of three bookies are silent for longer than a proxy waits for them: it gives the stream up, and
    whoever appends hears that it cannot be written, or that nobody knows. What is committed is read meanwhile, and
    when the bookies are back the stream can be written."""
    history, stream = History(), "few-bookies"
    author = Author(history, stream)
    async with (
        served.connect(append_timeout_s=1.0) as client,
        client.open_writer(stream) as writer,
    ):
        for _ in range(5):
            await author.append(writer, 3)
        owner = await served.owner_of(stream)
        timeouts = owner.counted("quire_write_proxy_service_timeouts_total")
        with paused(served, 2):
            failed = 0

            async def has_given_up() -> bool:
                nonlocal failed
                with pytest.raises(QuireError):
                    await author.append(writer)
                failed += 1
                now = await asyncio.to_thread(owner.counted, "quire_write_proxy_service_timeouts_total")
                return now > timeouts and failed >= (10 if IS_LONG else 2)

            reading = asyncio.create_task(read_some(served, stream, 15))
            await eventually(has_given_up, within_s=60, what="the proxy gives the stream up")
            async with asyncio.timeout(30):
                assert await reading == [b"author0/%d" % number for number in range(15)]

        async def can_write() -> bool:
            try:
                await author.append(writer)
            except QuireError:
                return False
            return True

        await eventually(can_write, within_s=60, what="the stream can be written again")
    await proven(served, history)


async def read_some(served: Served, stream: str, count: int) -> list[bytes]:
    async with served.connect() as client, client.open_reader(stream) as reader:
        return [(await anext(reader)).payload for _ in range(count)]


async def test_owned_streams_are_written_while_the_metadata_is_down(served: Served) -> None:
    """Row 7. It is down for longer than sessions last. Streams that are owned can be written all the time; one that is
    not is refused, and nothing of it is stored. When it is back all sessions are over, and everything goes on."""
    history, stream, fresh = History(), "owned-already", "not-owned"
    author, late = Author(history, stream), Author(history, fresh)
    async with served.connect() as client, client.open_writer(stream) as writer, Asking() as asking:
        await author.append(writer)
        with frozen_metadata(served):
            async with author.writing(writer):
                result = await late.write_to(asking, served.writers[0])
                assert result.code != pb.OK
                assert result.applied == pb.NO
                await at_a_random_moment(20.0 if IS_LONG else SESSION_S + 0.3, 1.0)
        async with author.writing(writer), client.open_writer(fresh) as second:
            for _ in range(5):
                await late.append(second)
    await proven(served, history)


async def test_a_stream_leaves_a_proxy_that_does_not_reach_the_bookies_and_stays_away(served: Served) -> None:
    """Row 11. The owner hears from no bookie, the other proxy does. It gives the stream up when the service timeout is
    over; what was under way is told to be unknown, and is stored once by the next owner. The first one does not take it
    again although it is well, until its probation is over."""
    history, stream = History(), "bad-way-to-storage"
    author, witness = Author(history, stream), Author(history, stream)
    owner, other = served.writers[:2]
    async with Asking() as asking:
        assert (await witness.write_to(asking, owner)).code == pb.OK
    async with Asking() as asking, served.connect() as client, client.open_writer(stream) as writer:
        await author.append(writer)
        with without_storage(owner):
            under_way = asyncio.create_task(witness.write_to(asking, owner))
            await author.append(writer)
            assert (await under_way).applied == pb.UNKNOWN
            assert await served.owner_of(stream) is other
            await author.append(writer)
        assert owner.counted("quire_write_proxy_service_timeouts_total") > 0
        await asking.release(other, stream)
        result = await witness.write_to(asking, owner)
        assert (result.code, result.applied) == (pb.STREAM_UNAVAILABLE, pb.NO), result
        await author.append(writer)
        assert await served.owner_of(stream) is other
    await proven(served, history)
