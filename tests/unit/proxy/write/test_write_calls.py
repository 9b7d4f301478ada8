"""The Write call: windows, order, fail-behind, and what ends it."""

import asyncio
from dataclasses import replace

import pytest
from tests.support.proxies.write_world import SETTINGS, STREAMS, Duplex, World, in_world, places

from quire.codec.batch_checksum import batch_checksum
from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.record_sets import encode_record_set
from quire.errors import InvalidArgument, ProxyDraining
from quire.protocol.rate_limits import RateLimits
from quire.rpc.serving.transport import Caller


async def acks(call: Duplex, count: int) -> list[pb.Ack]:
    return [await call.ack() for _ in range(count)]


def test_a_pipeline_of_batches_is_stored_in_order_and_answered_in_order() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            for number in range(100):
                call.send_batch("s", b"%d" % number, b"%d'" % number)
            answers = await acks(call, 100)
        assert [ack.call_seq for ack in answers] == list(range(1, 101))
        assert all(ack.result.code == pb.OK for ack in answers)
        records = await world.read("s", 200)
        assert [record.payload for record in records] == [
            b"%d" % number + mark for number in range(100) for mark in (b"", b"'")
        ]
        assert [record.dlsn for record in records] == [place for ack in answers for place in places(ack)]

    in_world(check)


def test_streams_of_one_call_do_not_wait_for_each_other() -> None:
    """Method: the first stream does not exist and may not be created; the second one is served all the same."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("missing", b"a", create_if_missing=False)
            call.send_batch("s", b"b")
            found = {ack.call_seq: ack.result.code for ack in await acks(call, 2)}
        assert found == {1: pb.LOG_NOT_FOUND, 2: pb.OK}

    in_world(check)


def test_batches_behind_one_that_failed_are_refused_until_the_attempt_is_raised() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("s", b"1")
            call.send_batch("s", b"damaged", crc32c=1)
            call.send_batch("s", b"3")
            call.send_batch("other", b"x")
            call.send_batch("s", b"again", attempt=2)
            call.send_batch("s", b"late", attempt=1)
            answers = sorted(await acks(call, 6), key=lambda ack: ack.call_seq)
        assert [ack.result.code for ack in answers] == [
            pb.OK,
            pb.CHECKSUM_FAILED,
            pb.PREDECESSOR_FAILED,
            pb.OK,
            pb.OK,
            pb.PREDECESSOR_FAILED,
        ]
        assert {ack.result.applied for ack in answers if ack.result.code != pb.OK} == {pb.NO}
        assert [record.payload for record in await world.read("s", 2)] == [b"1", b"again"]

    in_world(check)


def test_a_batch_that_fails_while_the_stream_is_opened_fails_those_behind_it() -> None:
    """The order is looked at again when what waited is begun. Method: a txid goes back in the middle of the queue."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("s", b"1", txids=[100])
            call.send_batch("s", b"2", txids=[50])
            call.send_batch("s", b"3", txids=[200])
            answers = await acks(call, 3)
        assert [ack.result.code for ack in answers] == [
            pb.OK,
            pb.TRANSACTION_OUT_OF_ORDER,
            pb.PREDECESSOR_FAILED,
        ]
        assert (answers[0].txid_first, answers[0].txid_last) == (100, 100)

    in_world(check)


@pytest.mark.parametrize("window", ["batches", "bytes"])
def test_a_client_that_does_not_take_its_answers_is_not_read_from(window: str) -> None:
    async def check(world: World) -> None:
        small = {"window_batches": 4} if window == "batches" else {"window_bytes": 4096}
        peer = await world.proxy("p1", replace(SETTINGS, **small))  # type: ignore[arg-type]
        async with peer.write_call() as call:
            for _ in range(20):
                call.send_batch("s", bytes(1024))
            await world.pass_time(5)
            assert call.taken == 1 + 4, "one to open, and the window"
            answers = await acks(call, 20)
            assert [ack.result.code for ack in answers] == [pb.OK] * 20
            assert call.taken == 21

    in_world(check)


def test_a_batch_larger_than_the_window_passes_when_nothing_else_is_under_way() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, window_bytes=100))
        async with peer.write_call() as call:
            call.send_batch("s", bytes(5000))
            assert (await call.ack()).result.code == pb.OK

    in_world(check, seeds=1)


def test_pings_are_answered_and_close_waits_for_what_was_sent() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            await call.send(pb.WriteRequest(ping=pb.Ping(number=7)))
            assert (await call.receive()).pong.number == 7
            call.send_batch("s", b"a")
            await call.send(pb.WriteRequest(close=pb.Close()))
            assert (await call.ack()).result.code == pb.OK
            with pytest.raises(StopAsyncIteration):
                await call.receive()

    in_world(check, seeds=1)


@pytest.mark.parametrize("mistake", ["first", "gap", "open again", "nothing"])
def test_a_client_that_breaks_the_rules_of_the_call_ends_it(mistake: str) -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        call = Duplex(peer.proxy.write, Caller("client"))
        if mistake == "first":
            await call.send(pb.WriteRequest(ping=pb.Ping(number=1)))
        else:
            await call.send(pb.WriteRequest(open=pb.Open(client_id="c")))
            await call.receive()
            call.send_batch("s", b"a")
            if mistake == "gap":
                await call.send(pb.WriteRequest(batch=pb.Batch(call_seq=9, stream="s")))
            else:
                await call.send(pb.WriteRequest(open=pb.Open()) if mistake == "open again" else pb.WriteRequest())
            assert (await call.ack()).result.code == pb.OK, "what was read before is answered"
        with pytest.raises(InvalidArgument):
            await call.receive()
        assert peer.proxy._metrics.violations.value == 1

    in_world(check, seeds=1)


def test_another_namespace_is_refused() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        with pytest.raises(InvalidArgument, match="'ns'"):
            async with peer.write_call(namespace="other"):
                pass
        async with peer.write_call(namespace="ns"):
            pass

    in_world(check, seeds=1)


def test_a_stream_over_its_limit_is_refused_and_others_are_not() -> None:
    async def check(world: World) -> None:
        limits = RateLimits(requests_hard=2)
        peer = await world.proxy("p1", replace(SETTINGS, stream_limits=limits))
        async with peer.write_call() as call:
            for number in range(5):
                call.send_batch("busy", b"%d" % number)
            call.send_batch("quiet", b"a")
            answers = {ack.call_seq: ack.result for ack in await acks(call, 6)}
            assert [answers[number].code for number in range(1, 7)] == [
                pb.OK,
                pb.OK,
                pb.OVER_CAPACITY,
                pb.PREDECESSOR_FAILED,
                pb.PREDECESSOR_FAILED,
                pb.OK,
            ]
            assert 0 < answers[3].retry_after_ms <= 500
            await world.pass_time(answers[3].retry_after_ms / 1000)
            call.send_batch("busy", b"2", attempt=2)
            assert (await call.ack()).result.code == pb.OK
        assert [record.payload for record in await world.read("busy", 3)] == [b"0", b"1", b"2"]

    in_world(check, seeds=1)


def test_a_record_set_is_stored_as_it_is_and_read_as_its_members() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        members = [b"a", b"", b"ccc"]
        data = encode_record_set(members)
        async with peer.write_call() as call:
            crc = batch_checksum("s", [data])
            call.send_batch("s", record_set=pb.RecordSet(count=3, data=data), crc32c=crc)
            ack = await call.ack()
            assert ack.result.code == pb.OK
            call.send_batch("s", record_set=pb.RecordSet(count=2, data=data), crc32c=crc)
            assert (await call.ack()).result.code == pb.INVALID_REQUEST, "it says a wrong number"
        records = await world.read("s", 3)
        assert [record.payload for record in records] == members
        assert [record.dlsn for record in records] == places(ack)

    in_world(check, seeds=1)


def test_an_atomic_batch_is_one_entry_or_refused() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("s", *[bytes(1000)] * 300, atomic=True)
            call.send_batch("s", *[bytes(1000)] * 300)
            call.send_batch("s", *[bytes(1000)] * 1100, atomic=True)
            whole, split, large = await acks(call, 3)
        assert (len(whole.placed), whole.result.code) == (1, pb.OK)
        assert len(split.placed) > 1
        assert (large.result.code, large.result.applied) == (pb.TOO_LARGE_RECORD, pb.NO)

    in_world(check, seeds=1)


def test_when_the_writer_is_fenced_everything_in_flight_is_unknown_and_the_rest_is_refused() -> None:
    """Row 3: another writer takes over without asking for the lock. Then the stream moves on by itself.

    Method: a direct writer without a lock fences the proxy's segment while batches are under way.
    """

    async def check(world: World) -> None:
        peer = await world.proxy("p1", streams=replace(STREAMS, commit_delay_s=1000.0))
        async with peer.write_call() as call:
            call.send_batch("s", b"1")
            assert (await call.ack()).result.code == pb.OK
            other = await world.reader("thief")
            async with other.open_writer("s", write_lock=False) as thief:
                await thief.append(b"stolen")
                for number in range(5):
                    call.send_batch("s", b"lost %d" % number)
                answers = await acks(call, 5)
            assert answers[0].result.code == pb.FENCED
            assert answers[0].result.applied == pb.UNKNOWN
            assert all(ack.result.code != pb.OK for ack in answers)
            await world.pass_time(1)
            call.send_batch("s", b"2", attempt=2)
            assert (await call.ack()).result.code == pb.OK, "the same proxy takes the stream again"
        await world.stop("p1")
        assert [record.payload for record in await world.read("s", 3)] == [b"1", b"stolen", b"2"]

    in_world(check, seeds=5)


def test_when_the_proxy_goes_down_the_call_ends_after_its_answers() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("s", b"1")
            assert (await call.ack()).result.code == pb.OK
            stopping = asyncio.create_task(peer.proxy.drain())
            call.send_batch("s", b"2")
            told: list[pb.WriteResponse] = []

            async def hear_all() -> None:
                while True:
                    told.append(await call.receive())

            with pytest.raises(ProxyDraining):
                await hear_all()
            (code,) = [each.ack.result.code for each in told if each.HasField("ack")]
            assert code in (pb.OK, pb.SERVICE_UNAVAILABLE)
            assert [each.go_away.stream for each in told if each.HasField("go_away")] == ["s"]
            await stopping

    in_world(check, seeds=8)


def test_a_client_that_leaves_costs_nothing_and_its_batches_are_stored() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        async with peer.write_call() as call:
            call.send_batch("s", b"1")
            await world.pass_time(0.01)
        assert not peer.proxy._calls
        assert not peer.proxy.table.named
        assert [record.payload for record in await world.read("s", 1)] == [b"1"]

    in_world(check)
