"""Stopping in good order: what was begun is answered, everybody is sent on once, and no write fails."""

import asyncio
from dataclasses import replace

from tests.support.proxies.write_world import SETTINGS, World, address, in_world, once

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendOutcomeUnknown, NotOwner, ProxyDraining, StreamUnavailable
from quire.rpc.serving import methods


def test_a_drained_proxy_answers_everything_and_each_client_is_sent_on_once() -> None:
    """Row 8. Method: batches keep coming while the proxy is drained; what is refused goes to whom the answer names."""

    async def check(world: World) -> None:
        peers = {"p1": await world.proxy("p1"), "p2": await world.proxy("p2")}

        async def write(stream: str, records: int) -> None:
            """One after the other, wherever the stream is."""
            host, redirects = "p1", 0
            for number in range(records):
                while True:
                    try:
                        await peers[host].write(stream, b"%d" % number)
                        break
                    except NotOwner as error:
                        redirects += 1
                        owner = error.facts["proxy"]
                        assert isinstance(owner, pb.Owner)
                        assert error.facts["owner_live"] is True
                        host = owner.host
                await world.pass_time(0.01)
            assert redirects <= 1

        for number in range(5):
            await peers["p1"].write(f"s{number}", b"first")
        writing = [asyncio.create_task(write(f"s{number}", 40)) for number in range(5)]
        await world.pass_time(0.05)
        draining = asyncio.create_task(peers["p1"].proxy.drain())
        await asyncio.gather(*writing)
        await draining
        assert peers["p1"].proxy.status == pb.DOWN
        assert {stream.name for stream in peers["p2"].proxy.table.owned} == {f"s{number}" for number in range(5)}
        for number in range(5):
            found = [record.payload for record in await world.read(f"s{number}", 41)]
            assert found == [b"first", *(b"%d" % each for each in range(40))]

    in_world(check, seeds=4)


def test_a_full_pipeline_is_moved_without_a_gap() -> None:
    """Row 16: what was accepted is stored, the first refused batch names the new owner, the rest has a failed
    predecessor; and a Write call is told to go.
    """

    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"first")
        async with one.write_call() as call:
            for number in range(100):
                call.send_batch("s", b"%d" % number)
            draining = asyncio.create_task(one.proxy.drain())
            for number in range(100, 200):
                call.send_batch("s", b"%d" % number)
            answers, advice = list[pb.Ack](), None
            while len(answers) < 200:
                response = await call.receive()
                if response.HasField("ack"):
                    answers.append(response.ack)
                else:
                    advice = response.go_away
        codes = [ack.result.code for ack in answers]
        stored = codes.index(pb.NOT_OWNER) if pb.NOT_OWNER in codes else 200
        assert codes[:stored] == [pb.OK] * stored
        if stored < 200:
            assert codes[stored + 1 :] == [pb.PREDECESSOR_FAILED] * (199 - stored)
            assert {ack.result.applied for ack in answers[stored:]} == {pb.NO}
            assert answers[stored].result.owner.host == "p2"
        await draining
        for number in range(stored, 200):
            await two.write("s", b"%d" % number)
        assert advice is None or advice.suggested_owner.host == "p2"
        found = [record.payload for record in await world.read("s", 201)]
        assert found == [b"first", *(b"%d" % each for each in range(200))]

    in_world(check, seeds=4)


def test_a_draining_proxy_is_not_in_the_list_and_takes_nothing() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        assert one.proxy.not_ready == []
        answer = await one.call(methods.DRAIN, pb.DrainRequest())
        assert answer.status in (pb.WRITE_AND_ACCEPT, pb.WRITE_ONLY)
        await one.proxy.wait_asked_to_drain()
        await world.pass_time(0.2)
        assert one.proxy.status in (pb.WRITE_ONLY, pb.DOWN)
        assert two.proxy._writers.addresses == {"p2:4100"}
        assert isinstance(await one.refused(methods.WRITE_ONCE, once("new", b"a")), ProxyDraining)
        moved = await one.refused(methods.WRITE_ONCE, once("s", b"a"))
        assert isinstance(moved, NotOwner)
        assert one.proxy.not_ready
        await one.proxy.wait_drained()
        one.proxy.ask_to_drain()

    in_world(check)


def test_streams_are_given_up_at_a_rate_and_the_busiest_last() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1", replace(SETTINGS, drain_streams_per_s=2.0))
        await world.proxy("p2")
        for name, count in (("busy", 20), ("calm", 1), ("some", 5)):
            for _ in range(count):
                await one.write(name, bytes(100))
        gone: list[tuple[float, str]] = []
        one.proxy.table.on_ownership = lambda stream: gone.append((world.now_s, stream))
        begun_s = world.now_s
        await one.proxy.drain()
        assert [stream for _, stream in gone] == ["calm", "some", "busy"]
        assert [round((at - begun_s) * 2) for at, _ in gone] == [0, 1, 2]

    in_world(check, seeds=1)


def test_a_stream_is_released_to_whom_an_operator_says() -> None:
    async def check(world: World) -> None:
        one, two = await world.proxy("p1"), await world.proxy("p2")
        await one.write("s", b"a")
        request = pb.ReleaseRequest(stream="s", suggested_owner=address("p2"))
        assert isinstance(await two.refused(methods.RELEASE, request), NotOwner)
        await one.call(methods.RELEASE, request)
        moved = await one.refused(methods.WRITE_ONCE, once("s", b"b"))
        assert isinstance(moved, NotOwner), "it is not taken back before the other one could have it"
        owner = moved.facts["proxy"]
        assert isinstance(owner, pb.Owner)
        assert owner.host == "p2"
        await two.write("s", b"b")
        await one.call(methods.RELEASE, pb.ReleaseRequest(stream="nobody's"))

    in_world(check, seeds=1)


def test_a_stream_goes_back_at_once_to_whom_it_came_from() -> None:
    """Whoever gave a stream up sends all on for a while. That ends when it is given the stream again."""

    async def check(world: World) -> None:
        peers = [await world.proxy("p1"), await world.proxy("p2")]
        await peers[0].write("s", b"first")
        for turn in range(4):
            owner, other = peers[turn % 2], peers[1 - turn % 2]
            target = other.proxy.address
            await owner.call(methods.RELEASE, pb.ReleaseRequest(stream="s", suggested_owner=target))
            if turn:
                assert isinstance(await other.refused(methods.WRITE_ONCE, once("s", b"too soon")), NotOwner)
            await other.heartbeat("s", handed_over=True)
            await other.write("s", b"%d" % turn)
        assert [record.payload for record in await world.read("s", 5)] == [b"first", b"0", b"1", b"2", b"3"]

    in_world(check, seeds=1)


def test_who_cannot_write_a_stream_does_not_take_it_from_whoever_offers_it() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", b"a")
        await one.call(methods.RELEASE, pb.ReleaseRequest(stream="s"))
        one.proxy._refusals.on_probation("s", AppendOutcomeUnknown("storage said nothing"))
        offer = pb.HeartbeatRequest(stream="s", handed_over=True)
        assert isinstance(await one.refused(methods.HEARTBEAT, offer), StreamUnavailable)

    in_world(check, seeds=1)


def test_who_takes_no_more_streams_serves_those_it_has() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", b"a")
        answer = await one.call(methods.SET_ACCEPT_NEW_STREAMS, pb.SetAcceptNewStreamsRequest(accept=False))
        assert answer.status == pb.WRITE_ONLY
        await one.write("s", b"b")
        await one.refused(methods.WRITE_ONCE, once("t", b"a"))
        answer = await one.call(methods.SET_ACCEPT_NEW_STREAMS, pb.SetAcceptNewStreamsRequest(accept=True))
        assert answer.status == pb.WRITE_AND_ACCEPT
        await one.write("t", b"a")

    in_world(check, seeds=1)


def test_a_stopped_proxy_completes_its_segments() -> None:
    async def check(world: World) -> None:
        one = await world.proxy("p1")
        await one.write("s", b"a")
        await world.stop("p1")
        info = await (await world.reader()).stream_info("s")
        assert [segment.is_completed for segment in info.segments] == [True]
        assert info.owner is None

    in_world(check)
