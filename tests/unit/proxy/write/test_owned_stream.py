"""The life of a stream at a proxy: every step of its states, who waits, and who is told what."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.support.proxies.write_world import SESSION_S, SETTINGS, STREAMS, Peer, World, in_world, once

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import (
    AppendOutcomeUnknown,
    NoSuchStream,
    NotOwner,
    OverCapacity,
    PositionInFuture,
    QuireError,
    StreamSealed,
    StreamUnavailable,
    TooManyStreams,
)
from quire.protocol.stream_states import StreamState
from quire.proxy.write.owned_stream import OwnedStream
from quire.rpc.serving import methods
from quire.rpc.serving.results import result_of


def states_of(peer: Peer, seen: list[StreamState]) -> None:
    """Note every state that a stream of this proxy comes to."""
    on_state = peer.proxy.table._on_state

    def noted(stream: OwnedStream, before: StreamState) -> None:
        seen.append(stream.state)
        on_state(stream, before)

    peer.proxy.table._on_state = noted  # type: ignore[method-assign]


def owned(peer: Peer) -> set[str]:
    return {stream.name for stream in peer.proxy.table.owned}


async def outcome(call: Any) -> Any:
    try:
        return await call
    except QuireError as error:
        return error


def test_from_the_first_request_to_the_release() -> None:
    async def check(world: World) -> None:
        peer, seen = await world.proxy("p1"), list[StreamState]()
        states_of(peer, seen)
        await peer.write("s", b"a")
        assert seen == [StreamState.INITIALIZING, StreamState.INITIALIZED]
        assert owned(peer) == {"s"}
        await peer.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        assert seen[2:] == [StreamState.CLOSING, StreamState.CLOSED]
        assert not owned(peer)
        assert len(peer.proxy.table) == 0
        info = await (await world.reader()).stream_info("s")
        assert info.owner is None
        assert [segment.is_completed for segment in info.segments] == [True], "it was closed in good order"

    in_world(check)


def test_the_first_of_many_callers_opens_the_stream_and_all_are_served_in_order() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await asyncio.gather(*(peer.write("s", b"%d" % number) for number in range(50)))
        assert len(peer.proxy.table) == 1
        stored = [int(record.payload) for record in await world.read("s", 50)]
        assert sorted(stored) == list(range(50))
        info = await (await world.reader()).stream_info("s")
        assert len(info.segments) == 1

    in_world(check)


def test_a_sealed_stream_and_one_that_is_not_there_are_told_as_such() -> None:
    async def check(world: World) -> None:
        peer, seen = await world.proxy("p1"), list[StreamState]()
        states_of(peer, seen)
        missing = await peer.refused(methods.WRITE_ONCE, once("no", b"a", create_if_missing=False))
        assert isinstance(missing, NoSuchStream)
        assert seen == [StreamState.INITIALIZING, StreamState.ERROR, StreamState.CLOSING, StreamState.CLOSED]
        await peer.write("s", b"a")
        await peer.call(methods.SEAL, pb.StreamRequest(stream="s"))
        for _ in range(2):
            error = await peer.refused(methods.WRITE_ONCE, once("s", b"b"))
            assert isinstance(error, StreamSealed)
        await peer.call(methods.SEAL, pb.StreamRequest(stream="s"))
        await world.pass_time(1)
        assert len(peer.proxy.table) == 0

    in_world(check, seeds=3)


def test_one_who_may_create_the_stream_is_not_refused_for_one_who_may_not() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        first = asyncio.create_task(outcome(peer.write("s", b"a", create_if_missing=False)))
        await world.pass_time(0)
        second = asyncio.create_task(outcome(peer.write("s", b"b")))
        assert isinstance(await second, pb.WriteOnceResponse)
        assert isinstance(await first, NoSuchStream | pb.WriteOnceResponse)

    in_world(check, seeds=4)


def test_what_waits_for_a_stream_has_a_bound() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, queue_operations_max=5))
        answers = await asyncio.gather(*(outcome(peer.write("s", b"x")) for _ in range(8)))
        assert sum(isinstance(answer, OverCapacity) for answer in answers) == 3
        assert sum(isinstance(answer, pb.WriteOnceResponse) for answer in answers) == 5

        other = await world.proxy("p2", replace(SETTINGS, queue_bytes_max=1000))
        answers = await asyncio.gather(*(outcome(other.write("t", bytes(400))) for _ in range(8)))
        assert sum(isinstance(answer, OverCapacity) for answer in answers) == 6

    in_world(check, seeds=1)


def test_a_refused_stream_is_not_tried_again_for_two_thirds_of_a_session() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        for _ in range(5):
            error = await two.refused(methods.WRITE_ONCE, once("s", b"b"))
            assert isinstance(error, NotOwner)
            owner = error.facts["proxy"]
            assert isinstance(owner, pb.Owner)
            assert owner.host == "p1"
        failures = two.proxy._metrics._acquire_failures["StreamOwned"]
        assert failures.value == 1, "the others were answered from memory"
        await one.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        assert isinstance(await two.refused(methods.WRITE_ONCE, once("s", b"b")), NotOwner)
        await world.pass_time(SESSION_S * 2 / 3)
        await two.write("s", b"b")

    in_world(check)


def test_whoever_could_not_reach_the_owner_is_told_to_wait() -> None:
    """The owner is in the live set, but this client tried it; or it is not in the live set."""

    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        error = await two.refused(methods.WRITE_ONCE, once("s", b"b"))
        assert (error.facts["owner_live"], error.facts["retry_after_ms"]) == (True, 0)
        error = await two.refused(methods.WRITE_ONCE, once("s", b"b"), tried=["p1:4100"])
        assert error.facts["owner_live"] is False
        wait_ms = error.facts["retry_after_ms"]
        assert isinstance(wait_ms, int)
        assert SESSION_S / 8 <= wait_ms / 1000 <= SESSION_S / 4
        result = result_of(error)
        assert (result.owner.host, result.owner_live, result.retry_after_ms) == ("p1", False, wait_ms)

    in_world(check, seeds=1)


def test_a_dead_owners_streams_are_taken_when_its_session_is_over() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        await world.kill("p1")
        begun_s = world.now_s
        while True:
            answer = await outcome(two.write("s", b"b"))
            if isinstance(answer, pb.WriteOnceResponse):
                break
            assert isinstance(answer, NotOwner)
            await world.pass_time(max(answer.facts["retry_after_ms"], 10) / 1000)  # type: ignore[call-overload]
        assert world.now_s - begun_s <= SESSION_S + 1.0
        assert [record.payload for record in await world.read("s", 2)] == [b"a", b"b"]

    in_world(check, seeds=8)


def test_a_restarted_proxy_is_not_sent_to_itself_and_takes_its_streams_back() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", b"a")
        await world.kill("p1")
        again = await world.proxy("p1")
        seen = set()
        while True:
            answer = await outcome(again.write("s", b"b"))
            if isinstance(answer, pb.WriteOnceResponse):
                break
            assert isinstance(answer, StreamUnavailable)
            seen.add(result_of(answer).code)
            await world.pass_time(answer.facts["retry_after_ms"] / 1000)  # type: ignore[operator]
        assert seen == {pb.STREAM_NOT_READY}

    in_world(check, seeds=2)


def test_a_stream_that_a_direct_client_writes_is_told_so() -> None:
    async def check(world: World) -> None:
        peer, direct = await world.proxy("p1"), await world.reader("direct")
        async with direct.open_writer("s") as writer:
            await writer.append(b"a")
            error = await peer.refused(methods.WRITE_ONCE, once("s", b"b"))
            assert isinstance(error, StreamUnavailable)
            assert "direct" in str(error)
        await world.pass_time(SESSION_S)
        await peer.write("s", b"b")

    in_world(check, seeds=1)


def test_storage_that_does_not_answer_costs_the_stream_and_it_stays_away_for_a_while() -> None:
    """Row 11. Method: all bookies are cut off from the proxy, and nobody else; another proxy then takes the stream."""

    async def check(world: World) -> None:
        settings = replace(SETTINGS, service_timeout_s=2.0, probation_s=30.0)
        one, two = await world.proxy("p1", settings), await world.proxy("p2", settings)
        await one.write("s", b"a")
        for bookie in world.bookies:
            world.sim.network.partition("p1", bookie.host.name)
        begun_s = world.now_s
        error = await one.refused(methods.WRITE_ONCE, once("s", b"b"))
        assert isinstance(error, AppendOutcomeUnknown)
        assert 2.0 <= world.now_s - begun_s < 4.0
        assert one.proxy._metrics.service_timeouts.value == 1
        held = await one.refused(methods.WRITE_ONCE, once("s", b"c"))
        assert isinstance(held, StreamUnavailable)
        while not isinstance(await outcome(two.write("s", b"d")), pb.WriteOnceResponse):
            await world.pass_time(0.1)
        assert world.now_s - begun_s < 15.0
        world.sim.network.heal()
        await two.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        assert isinstance(await one.refused(methods.WRITE_ONCE, once("s", b"c")), StreamUnavailable)
        await world.pass_time(30)
        await one.write("s", b"e")
        assert [r.payload for r in await world.read("s", 3)][-2:] == [b"d", b"e"]

    in_world(check, seeds=2)


def test_a_stream_that_nobody_uses_is_given_up_and_acquired_again() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, stream_idle_unload_s=100.0))
        await peer.write("s", b"a")
        await peer.write("called", b"a")
        async with peer.write_call() as call:
            call.send_batch("called", b"b")
            await call.ack()
            await world.pass_time(79)
            assert owned(peer) == {"s", "called"}
            await world.pass_time(45)
            assert owned(peer) == {"called"}, "one call has named it"
            await peer.write("s", b"b")
        await world.pass_time(125)
        assert not owned(peer)
        assert peer.proxy._metrics.unloads.value == 3
        assert [record.payload for record in await world.read("s", 2)] == [b"a", b"b"]

    in_world(check)


def test_streams_that_are_kept_alive_are_not_unloaded() -> None:
    async def check(world: World) -> None:
        streams = replace(STREAMS, keepalive_s=5.0)
        peer = await world.proxy("p1", replace(SETTINGS, stream_idle_unload_s=10.0), streams=streams)
        await peer.write("s", b"a")
        await world.pass_time(60)
        assert owned(peer) == {"s"}

    in_world(check, seeds=1)


def test_an_operation_that_comes_while_an_idle_stream_is_closed_is_not_refused() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"a")
        stream = peer.proxy.table.get("s")
        assert stream is not None
        stream.close()
        answer = await peer.write("s", b"b")
        assert answer.result.code == pb.OK
        assert peer.proxy.table.get("s") is not stream

    in_world(check)


def test_a_proxy_takes_no_more_streams_than_it_may() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, streams_owned_max=2))
        answers = await asyncio.gather(*(outcome(peer.write(f"s{number}", b"x")) for number in range(4)))
        assert sum(isinstance(answer, pb.WriteOnceResponse) for answer in answers) == 2
        assert sum(isinstance(answer, TooManyStreams) for answer in answers) == 2
        assert isinstance(await peer.refused(methods.WRITE_ONCE, once("more", b"x")), TooManyStreams)

        small = await world.proxy("p2", replace(SETTINGS, acquires_max=1, acquires_waiting_max=2))
        answers = await asyncio.gather(*(outcome(small.write(f"t{number}", b"x")) for number in range(5)))
        refused = [answer for answer in answers if isinstance(answer, QuireError)]
        assert [result_of(error).code for error in refused] == [pb.STREAM_NOT_READY] * 2
        assert all(error.facts["retry_after_ms"] for error in refused)

    in_world(check, seeds=1)


def test_a_busy_proxy_takes_no_further_streams_and_serves_those_it_has() -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1", replace(SETTINGS, acquire_bytes_per_s=1000.0))
        await peer.write("s", bytes(5000))
        assert isinstance(await peer.refused(methods.WRITE_ONCE, once("t", b"x")), TooManyStreams)
        await peer.write("s", b"x")
        await world.pass_time(60)
        await peer.write("t", b"x")

    in_world(check, seeds=1)


def test_after_failures_in_a_row_a_stream_is_tried_ever_later() -> None:
    """Row 6. Method: no bookie is left to begin a segment with."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1", change_timeout_s=1.0, append_timeout_s=2.0, call_timeout_s=2.0)
        await peer.heartbeat("s")
        for bookie in world.bookies[:2]:
            await bookie.crash()
        waits = list[Any]()
        for _ in range(4):
            while True:
                error = await peer.refused(methods.WRITE_ONCE, once("s", b"x"))
                if peer.proxy.table.refusals.held("s") is not None or not waits:
                    break
                await world.pass_time(0.1)
            assert error.outcome.name == "NOT_APPLIED"
            waits.append(error.facts.get("retry_after_ms", 0))
            await world.pass_time(waits[-1] / 1000 + 0.01)
        for bookie in world.bookies[:2]:
            await bookie.start()
        while not isinstance(await outcome(peer.write("s", b"x")), pb.WriteOnceResponse):
            await world.pass_time(1.0)

    in_world(check, seeds=1)


def test_a_session_that_ends_does_not_end_the_writing() -> None:
    """Row 2: the lock is taken again in the background, and nobody notices."""

    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        await peer.write("s", b"a")
        world.tree.expire_host("p1")
        await peer.write("s", b"b")
        await world.pass_time(3)
        await peer.write("s", b"c")
        assert peer.proxy._metrics.session_expiries.value == 1
        assert (await (await world.reader()).stream_info("s")).owner is not None
        assert [record.payload for record in await world.read("s", 3)] == [b"a", b"b", b"c"]
        assert "p1:4100" in peer.proxy._writers.addresses, "and it is in the live set again"

    in_world(check)


def test_an_owner_that_lost_its_lock_to_another_gives_the_stream_up() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        world.tree.stall("p1", 6.0)
        await world.pass_time(SESSION_S + 0.5)
        await two.write("s", b"b")
        error = await one.refused(methods.WRITE_ONCE, once("s", b"lost"))
        assert error.outcome.name in ("UNKNOWN", "NOT_APPLIED")
        await world.pass_time(8)
        assert not owned(one)
        error = await one.refused(methods.WRITE_ONCE, once("s", b"c"))
        assert isinstance(error, NotOwner)
        assert [record.payload for record in await world.read("s", 2)] == [b"a", b"b"]

    in_world(check, seeds=3)


@pytest.mark.parametrize("to_readers", [False, True])
def test_a_heartbeat_takes_the_stream(to_readers: bool) -> None:
    async def check(world: World) -> None:
        peer = await world.proxy("p1")
        answer = await peer.heartbeat("s", to_readers=to_readers)
        assert (answer.owner.host, answer.epoch) == ("p1", 1)
        info = await (await world.reader()).stream_info("s")
        assert len(info.segments) == int(to_readers), "only then something is written"
        await peer.write("s", b"a")
        assert [record.payload for record in await world.read("s", 1)] == [b"a"], "readers do not see it"

    in_world(check, seeds=1)


def test_streams_are_truncated_by_their_owner() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        first = await one.write("s", b"a")
        await one.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        second = await one.write("s", b"b")
        assert second.placed[0].first.lssn == first.placed[0].first.lssn + 1
        before = pb.Position(dlsn=second.placed[0].first)
        answer = await one.call(methods.TRUNCATE, pb.TruncateRequest(stream="s", before=before))
        assert (answer.first, answer.segments) == (second.placed[0].first, 1)
        again = await one.call(methods.TRUNCATE, pb.TruncateRequest(stream="s", before=before))
        assert (again.first, again.segments) == (answer.first, 0)
        future = pb.Position(dlsn=pb.Dlsn(lssn=99))
        error = await one.refused(methods.TRUNCATE, pb.TruncateRequest(stream="s", before=future))
        assert isinstance(error, PositionInFuture)
        assert [record.payload for record in await world.read("s", 1)] == [b"b"], "and nothing was truncated"
        error = await two.refused(methods.TRUNCATE, pb.TruncateRequest(stream="s", before=before))
        assert isinstance(error, NotOwner)

    in_world(check, seeds=1)
