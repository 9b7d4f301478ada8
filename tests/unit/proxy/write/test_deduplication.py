"""Producers: what is sent again is answered with where it was stored, by the owner and by the next owner."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.proxies.write_world import (
    SETTINGS,
    STREAMS,
    Duplex,
    Peer,
    World,
    in_world,
    once,
    places,
    producer,
)

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import (
    AppendOutcomeUnknown,
    InvalidArgument,
    MetadataUnavailable,
    NotOwner,
    QuireError,
    StreamUnavailable,
    TxidOutOfOrder,
)
from quire.protocol.producers import ProducerTable
from quire.proxy.write.producer_records import producers_path
from quire.proxy.write.serving import ServingStream
from quire.rpc.serving import methods
from quire.stream.nodes import StreamNodes
from quire.stream.segments import StreamSegments


def served(peer: Peer) -> ServingStream:
    owned = peer.proxy.table.owns("s")
    assert owned is not None
    assert owned.serving is not None
    return owned.serving


async def all_acks(call: Duplex, count: int) -> list[pb.Ack]:
    return [await call.ack() for _ in range(count)]


async def payloads(world: World, count: int) -> list[bytes]:
    return [record.payload for record in await world.read("s", count)]


def test_a_batch_that_is_sent_again_is_answered_with_its_first_places() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        first = await peer.write("s", b"a", b"b", producer=producer(1, 1))
        await peer.write("s", b"plain")
        again = await peer.write("s", b"a", b"b", producer=producer(1, 1))
        assert (first.result.code, again.result.code, again.result.applied) == (pb.OK, pb.DUPLICATE, pb.YES)
        assert places(again) == places(first)
        assert places(await peer.write("s", b"b", producer=producer(1, 2))) == places(first)[1:]
        await peer.write("s", b"c", producer=producer(1, 3))
        records = await world.read("s", 4)
        assert [record.payload for record in records] == [b"a", b"b", b"plain", b"c"]
        assert [record.dlsn for record in records][:2] == places(first)

    in_world(check)


def test_of_a_batch_that_is_there_in_part_only_the_rest_is_appended() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        first = await peer.write("s", b"a", b"b", producer=producer(1, 1), txids=[5, 6])
        more = await peer.write("s", b"a", b"b", b"c", b"d", producer=producer(1, 1), txids=[5, 6, 7, 8])
        assert more.result.code == pb.OK
        assert places(more)[:2] == places(first)
        records = await world.read("s", 4)
        assert [(record.payload, record.txid) for record in records] == [(b"a", 5), (b"b", 6), (b"c", 7), (b"d", 8)]
        assert [record.dlsn for record in records] == places(more)

    in_world(check, seeds=1)


def test_a_gap_is_refused_and_a_new_producer_may_begin_anywhere() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"x", producer=producer(2, 1000))
        await peer.write("s", b"a", producer=producer(1, 1))
        error = await peer.refused(methods.WRITE_ONCE, once("s", b"c", producer=producer(1, 3)))
        assert isinstance(error, TxidOutOfOrder)
        await peer.write("s", b"b", producer=producer(1, 2))
        assert await payloads(world, 3) == [b"x", b"a", b"b"]

    in_world(check, seeds=1)


@pytest.mark.parametrize("wrong", [pb.Producer(id=b"short", first_seq=1), pb.Producer(id=bytes(16), first_seq=0)])
def test_a_producer_says_who_it_is_and_counts_from_one(wrong: pb.Producer) -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        assert isinstance(await peer.refused(methods.WRITE_ONCE, once("s", b"a", producer=wrong)), InvalidArgument)

    in_world(check, seeds=1)


def test_what_is_still_under_way_is_not_appended_twice() -> None:
    """Method: the same batch comes three times before the first is durable."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"0", producer=producer(1, 1))
        answers = await asyncio.gather(*(peer.write("s", b"a", producer=producer(1, 2)) for _ in range(3)))
        assert sorted(answer.result.code for answer in answers) == [pb.OK, pb.DUPLICATE, pb.DUPLICATE]
        assert len({tuple(places(answer)) for answer in answers}) == 1
        await peer.write("s", b"end")
        assert await payloads(world, 3) == [b"0", b"a", b"end"]

    in_world(check, seeds=5)


def test_record_sets_count_by_their_members() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        data = encode_record_set([b"a", b"b", b"c"])
        request = pb.WriteOnceRequest(
            batch=pb.Batch(
                stream="s",
                record_set=pb.RecordSet(count=3, data=data),
                producer=producer(1, 1),
                create_if_missing=True,
                crc32c=batch_checksum("s", [data]),
            )
        )
        first = await peer.call(methods.WRITE_ONCE, request)
        again = await peer.call(methods.WRITE_ONCE, request)
        assert again.result.code == pb.DUPLICATE
        assert places(again) == places(first)
        await peer.write("s", b"d", producer=producer(1, 4))
        assert await payloads(world, 4) == [b"a", b"b", b"c", b"d"]
        late = pb.WriteOnceRequest()
        late.CopyFrom(request)
        late.batch.producer.first_seq = 3
        assert isinstance(await peer.refused(methods.WRITE_ONCE, late), InvalidArgument), "a set cannot be cut"

    in_world(check, seeds=1)


async def persist(world: World, peer: Peer, request: pb.WriteOnceRequest, *tried: str) -> pb.WriteOnceResponse:
    """Send it until it is answered."""
    while True:
        try:
            answer: pb.WriteOnceResponse = await peer.call(methods.WRITE_ONCE, request, tried=tried)
            return answer
        except (NotOwner, StreamUnavailable) as error:
            retry_after_ms = error.facts.get("retry_after_ms")
            await world.pass_time((retry_after_ms if isinstance(retry_after_ms, int) else 0) / 1000 + 0.01)


@pytest.mark.parametrize("snapshot_entries", [1, 7, 10_000])
def test_the_next_owner_knows_what_the_last_one_stored(snapshot_entries: int) -> None:
    """Of several producers, with and without snapshots in between. Method: the owner is killed, then all is sent again.

    Batches are small and entries smaller, so that some batches are in several entries.
    """

    async def check(world: World) -> None:
        settings = replace(SETTINGS, snapshot_entries=snapshot_entries)
        streams = replace(STREAMS, entry_bytes=200)
        one = await world.proxy("p1", settings, streams=streams)
        two = await world.proxy("p2", settings, streams=streams)
        requests, stored = [], []
        for number in range(30):
            who, seq = number % 3, number // 3 * 4 + 1
            records = [b"%d/%d" % (number, place) * 5 for place in range(4)]
            requests.append(once("s", *records, producer=producer(who, seq)))
            stored.append(await one.call(methods.WRITE_ONCE, requests[-1]))
        await world.kill("p1")
        for request, first in zip(requests, stored, strict=True):
            answer = await persist(world, two, request, "p1:4100")
            assert answer.result.code == pb.DUPLICATE
            assert places(answer) == places(first)
        last = await two.write("s", b"last", producer=producer(0, 41))
        assert last.result.code == pb.OK
        found = await world.read("s", 121)
        assert [record.dlsn for record in found] == [*(p for answer in stored for p in places(answer)), *places(last)]

    in_world(check, seeds=2)


def test_a_batch_in_flight_when_the_owner_dies_is_stored_once() -> None:
    """Whether it was stored or not: the new owner finds out. Method: the owner dies at a random moment of a stream of
    batches; everything that was not acknowledged is sent again, in order.
    """

    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        count, acked = 40, 0
        requests = [once("s", b"%d" % number, producer=producer(1, number + 1)) for number in range(count)]
        await one.call(methods.WRITE_ONCE, requests[0])

        async def send(request: pb.WriteOnceRequest) -> bool:
            try:
                await one.call(methods.WRITE_ONCE, request)
            except (QuireError, asyncio.CancelledError):
                return False
            return True

        host = world.sim.host("p1")
        sending = [host.spawn(send(request)) for request in requests[1:]]
        await world.pass_time(world.sim.rng.random() * 0.01)
        await world.kill("p1")
        acked = 1 + sum(not task.cancelled() and task.done() and task.result() for task in sending)
        for request in requests[acked:]:
            await persist(world, two, request, "p1:4100")
        assert await payloads(world, count) == [b"%d" % number for number in range(count)]
        namespace = await world.reader()
        await two.call(methods.SEAL, pb.StreamRequest(stream="s"))
        assert (await namespace.stream_info("s")).record_count == count

    in_world(check, seeds=12)


def test_streams_without_producers_pay_nothing() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("plain", b"a")
        await peer.write("s", b"a", producer=producer(1, 1))
        store = world.cluster.store
        context = peer.proxy.namespace.context
        assert await store.exists(producers_path(context.paths("plain"))) is None
        assert (await store.get(producers_path(context.paths("s")))).data == b"1"
        assert peer.proxy._metrics.snapshots.value == 1, "the one that comes with the first producer"

    in_world(check, seeds=1)


def test_snapshots_come_with_entries_and_with_time_if_anything_changed() -> None:
    async def check(world: World) -> None:
        settings = replace(SETTINGS, snapshot_entries=10, snapshot_s=60.0)
        peer = await world.proxy("p1", settings)
        snapshots = peer.proxy._metrics.snapshots
        await peer.write("s", b"a", producer=producer(1, 1))
        for number in range(30):
            await peer.write("s", b"%d" % number)
        assert 3 <= snapshots.value <= 5, "also by entries of others: who looks back has to read them"
        before = snapshots.value
        await world.pass_time(65)
        assert snapshots.value == before, "nothing changed"
        await peer.write("s", b"b", producer=producer(1, 2))
        await world.pass_time(65)
        assert snapshots.value == before + 1

    in_world(check, seeds=1)


def test_a_first_producer_whose_stream_cannot_be_marked_is_refused_and_others_are_served() -> None:
    """The first batch of a producer needs the metadata store once. Owned streams go on without it: row 7."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"a")
        world.tree.stall("p1", 1.8)
        error = await peer.refused(methods.WRITE_ONCE, once("s", b"b", producer=producer(1, 1)))
        assert isinstance(error, MetadataUnavailable)
        assert (await peer.write("s", b"c")).result.code == pb.OK
        await world.pass_time(2)
        assert (await peer.write("s", b"b", producer=producer(1, 1))).result.code == pb.OK
        assert await payloads(world, 3) == [b"a", b"c", b"b"]

    in_world(check, seeds=1)


def test_what_comes_again_while_the_stream_is_given_up_hears_where_it_is() -> None:
    """Method: a snapshot is due with every entry. Two batches are under way, the second one comes again and waits for
    it, and the stream is given up: all of it is stored, so all are told where, whatever becomes of the snapshot."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, snapshot_entries=1))
        await peer.write("s", b"0", producer=producer(1, 1))
        await world.pass_time(1)
        serving = served(peer)
        async with peer.write_call() as call:
            for payload, first_seq in ((b"a", 2), (b"b", 3), (b"b", 3)):
                call.send_batch("s", payload, producer=producer(1, first_seq))
            answering = asyncio.create_task(all_acks(call, 3))
            while not serving._duplicates:  # noqa: ASYNC110 - nobody would tell
                await asyncio.sleep(0)
            releasing = asyncio.create_task(peer.call(methods.RELEASE, pb.ReleaseRequest(stream="s")))
            acks = await answering
        assert [ack.result.code for ack in acks] == [pb.OK, pb.OK, pb.DUPLICATE]
        assert places(acks[1]) == places(acks[2])
        await releasing

    in_world(check, seeds=5)


def test_producers_with_records_under_way_are_known_however_many_there_are() -> None:
    """Method: the owner knows two producers at most. Five write at once, and each sends its batch again at once: each
    is stored once, and when all is settled only as many are known as may be."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"0", producer=producer(9, 1))
        producers = served(peer).producers = ProducerTable(producers_max=2)
        sent = [(number, b"%d" % number) for number in range(1, 6)] * 2
        answers = await asyncio.gather(*(peer.write("s", each, producer=producer(number, 1)) for number, each in sent))
        assert sorted(answer.result.code for answer in answers) == [pb.OK] * 5 + [pb.DUPLICATE] * 5
        assert [places(answer) for answer in answers[:5]] == [places(answer) for answer in answers[5:]]
        assert sorted(await payloads(world, 6)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
        await peer.write("s", b"end", producer=producer(6, 1))
        assert len(producers) == 2

    in_world(check, seeds=5)


def test_producers_are_known_from_the_number_on_that_a_forgotten_segment_had() -> None:
    """Method: somebody began a segment, and its ledger is gone, as an interrupted recovery of Apache's leaves it."""

    async def check(world: World) -> None:
        context = (await world.reader("other")).context
        await (await world.reader("other")).create_stream("s")
        nodes = StreamNodes(context.store, context.paths("s"))
        segments = StreamSegments(context, await nodes.guarded(context.runtime.clock, timeout_s=10))
        begun = await segments.begin(1, STREAMS)
        await begun.resources.aclose()
        await context.ledgers.delete(begun.ledger.id)
        first = await (await world.proxy("p1")).write("s", b"a", producer=producer(1, 1))
        assert places(first)[0][0] == begun.stored.segment.lssn, "the number is given again"
        await world.stop("p1")
        again = await (await world.proxy("p2")).write("s", b"a", producer=producer(1, 1))
        assert (again.result.code, places(again)) == (pb.DUPLICATE, places(first))

    in_world(check, seeds=1)


def test_no_control_record_follows_a_failure() -> None:
    """Whoever takes the stream next finds nothing behind what failed: neither proof nor snapshot is written."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"0", producer=producer(1, 1))
        serving = served(peer)
        snapshots = serving._metrics.snapshots.value
        serving.fail(AppendOutcomeUnknown("storage said nothing"))
        with pytest.raises(StreamUnavailable):
            serving.prove(b"alive", lambda _: None)
        serving.snapshot()
        serving.snapshot_if_due()
        assert serving._metrics.snapshots.value == snapshots
        again = await persist(world, peer, once("s", b"0", producer=producer(1, 1)))
        assert again.result.code == pb.DUPLICATE
        beat = await peer.heartbeat("s", to_readers=True)
        assert beat.epoch == 2
        entries = [record for record in await world.read("s", 1) if record.dlsn.lssn == 1]
        assert [record.payload for record in entries] == [b"0"]

    in_world(check, seeds=3)
