"""Rows of the failure table that are about who owns a stream, on processes: see `support/servers/served_cluster.py`.

Each row ends with the same proof: nothing that was acknowledged is missing, nothing is there twice, out of order, or
although it was refused. Row 1 is in `test_failover.py`, row 8 in `tests/e2e/test_proxy_command.py`. With
QUIRE_TEST_LONG what goes wrong lasts longer, or happens more often.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream, Outcome, QuireError
from tests.integration.proxy.authors import Author, following, proven
from tests.support.servers.detoured import detoured_runtime
from tests.support.servers.served_cluster import SESSION_S, Asking, ProxyProcess, Served, batch
from tests.support.streams.served_history import History
from tests.support.waiting import at_a_random_moment, eventually

IS_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("served"), pytest.mark.timeout(900 if IS_LONG else 300)]


@contextmanager
def without_metadata(proxy: ProxyProcess) -> Iterator[None]:
    """It runs on, and cannot reach the metadata."""
    for way in proxy.to_metadata:
        way.cut()
    try:
        yield
    finally:
        for way in proxy.to_metadata:
            way.mend()


async def expired(proxy: ProxyProcess, seen_by: ProxyProcess) -> None:
    """Return once the others do not count it among those that live."""

    async def is_gone() -> bool:
        return proxy.address not in await asyncio.to_thread(seen_by.debug, "ring")

    await eventually(is_gone, within_s=30, what=f"{proxy.name} is gone for {seen_by.name}")


async def listed(proxy: ProxyProcess, seen_by: ProxyProcess) -> None:
    async def is_back() -> bool:
        return proxy.address in await asyncio.to_thread(seen_by.debug, "ring")

    await eventually(is_back, within_s=30, what=f"{proxy.name} is back for {seen_by.name}")


async def test_an_owner_whose_session_expired_goes_on_writing(served: Served) -> None:
    """Row 2. Its clients notice nothing: nobody else wants the stream, so it has its lock again when it can. Not even a
    new segment is begun."""
    history, stream = History(), "expired-owner"
    author = Author(history, stream)
    async with served.connect() as client, client.open_writer(stream) as writer:
        await author.append(writer)
        owner, other = await served.owner_and_other(stream)
        expiries = owner.counted("quire_write_proxy_session_expiries_total")
        with without_metadata(owner):
            async with author.writing(writer):
                await expired(owner, other)
                await at_a_random_moment(20.0 if IS_LONG else 0.3, 1.0)

        async def has_noticed() -> bool:
            return await asyncio.to_thread(owner.counted, "quire_write_proxy_session_expiries_total") > expiries

        async with author.writing(writer):
            await eventually(has_noticed, within_s=30, what="the owner knows that its session is over")
            await listed(owner, other)
        assert await served.owner_of(stream) is owner
        assert {dlsn.lssn for dlsn in author.dlsns} == {author.dlsns[0].lssn}
    await proven(served, history)


async def test_of_two_that_believe_to_own_a_stream_only_the_later_one_can_write_it(served: Served) -> None:
    """Row 3. The first owner cannot reach the metadata, so that it does not know of the second one. Bookies refuse what
    it writes then, and it begins no segment: it has no lock. Once it knows, it sends clients to the second one."""
    history, stream = History(), "two-owners"
    old, new = Author(history, stream), Author(history, stream)
    async with Asking() as asking:
        first, second = served.writers[:2]
        assert (await old.write_to(asking, first)).code == pb.OK
        with without_metadata(first):
            await expired(first, second)
            assert (await old.write_to(asking, first)).code == pb.OK, "until somebody else has it, it is the owner"
            assert (await new.write_to(asking, second)).code == pb.OK
            for attempt in range(3):
                result = await old.write_to(asking, first)
                assert result.code != pb.OK, attempt
                assert (await new.write_to(asking, second)).code == pb.OK
        await listed(first, second)

        async def points_to_second() -> bool:
            result = await old.write_to(asking, first)
            assert result.code != pb.OK
            return result.code == pb.NOT_OWNER and result.owner.port == second.port and result.owner_live

        await eventually(points_to_second, within_s=30, what="the first one knows who owns it")
        assert (await new.write_to(asking, second)).code == pb.OK
    assert {dlsn.lssn for dlsn in old.dlsns} == {1}
    assert {dlsn.lssn for dlsn in new.dlsns} == {2}
    await proven(served, history)


async def test_who_cannot_reach_the_owner_fails_without_moving_the_stream(served: Served) -> None:
    """Row 10. Others go on at the same owner, in the same segment. The one who is cut off is told that nothing was
    stored, when its time is up; and it can write as soon as the owner can be reached again."""
    history, stream = History(), "unreachable-owner"
    one, other = Author(history, stream), Author(history, stream)
    async with served.connect() as client, client.open_writer(stream) as writer:
        await other.append(writer)
        owner = await served.owner_of(stream)
        way = served.cluster.way_to(owner.port)
        runtime = detoured_runtime({owner.port: way.port})
        async with (
            served.connect(runtime=runtime, append_timeout_s=0.6) as cut_off,
            cut_off.open_writer(stream) as lonely,
        ):

            async def can_write() -> bool:
                try:
                    await one.append(lonely)
                except QuireError:  # Its time is short, also for a machine that is busy.
                    return False
                return True

            await eventually(can_write, within_s=30, what="it has found the owner")
            way.cut()
            async with other.writing(writer):
                told = 0
                for _ in range(20 if IS_LONG else 10):
                    # The first may have been sent into a connection that was just broken; and time may be up while the
                    # other proxy is being asked. Then nobody can know.
                    with pytest.raises(QuireError) as raised:
                        await one.append(lonely)
                    told += raised.value.outcome is Outcome.NOT_APPLIED
                    if told and not IS_LONG:
                        break
                assert told, "that nothing was stored"
            assert await served.owner_of(stream) is owner
            way.mend()
            await eventually(can_write, within_s=30, what="it writes again")
        await runtime.disk.aclose()
    assert {dlsn.lssn for dlsn in one.dlsns + other.dlsns} == {other.dlsns[0].lssn}
    await proven(served, history)


async def test_a_stream_moves_under_a_full_pipeline_and_nobody_notices(served: Served) -> None:
    """Row 16, with the client that everybody uses: what the old owner accepted is answered, the rest goes to the new
    one in order, and the application sees neither."""
    history, stream = History(), "moving"
    author = Author(history, stream)
    async with (
        Asking() as asking,
        served.connect() as client,
        client.open_writer(stream) as writer,
        following(history, client, stream),
    ):
        await author.append(writer)
        for _ in range(20 if IS_LONG else 3):  # There and back again, at once.
            owner, other = await served.owner_and_other(stream)
            before = len(author.dlsns)
            async with asyncio.TaskGroup() as group:
                moving = group.create_task(asking.release(owner, stream, to=other))
                while not moving.done() or len(author.dlsns) < before + 200:
                    for _ in range(50):
                        group.create_task(author.append(writer))
                    await author.append(writer)
            assert await served.owner_of(stream) is other
        await client.seal_stream(stream)
    assert len({dlsn.lssn for dlsn in author.dlsns}) >= 3
    await proven(served, history)


async def test_batches_behind_the_first_that_a_former_owner_refuses_fail_with_it(served: Served) -> None:
    """Row 16, on the wire: of a pipeline to the old owner a first part is stored. The first batch behind it is told
    whose the stream is, all others that their predecessor failed, and none of those is stored."""
    stream, number = "moving-pipeline", 0
    async with Asking() as asking:
        owner, other = served.writers[:2]
        assert (await asking.result(owner, stream, b"first")).code == pb.OK
        async with asking.pipeline(owner) as call:
            await call.send(pb.WriteRequest(open=pb.Open(client_id="pipeline")))
            assert (await anext(call)).HasField("opened")
            results: list[pb.Result] = []
            moving: asyncio.Task[None] | None = None
            while not results or results[-1].code != pb.PREDECESSOR_FAILED or number > len(results):
                if number < len(results) + 100 and (not results or results[-1].code == pb.OK or number < 1000):
                    number += 1
                    await call.send(pb.WriteRequest(batch=batch(stream, b"%d" % number, call_seq=number)))
                else:
                    response = await anext(call)
                    if response.HasField("ack"):
                        assert response.ack.call_seq == len(results) + 1
                        results.append(response.ack.result)
                if len(results) == 20 and moving is None:
                    moving = asyncio.create_task(asking.release(owner, stream, to=other))
            assert moving is not None
            await moving
    stored = sum(result.code == pb.OK for result in results)
    refused, *behind = results[stored:]
    assert (refused.code, refused.applied, refused.owner.port) == (pb.NOT_OWNER, pb.NO, other.port)
    assert {(result.code, result.applied) for result in behind} == {(pb.PREDECESSOR_FAILED, pb.NO)}
    found = [record.payload for record in await served.stored(stream)]
    assert found == [b"first", *(b"%d" % each for each in range(1, stored + 1))]


async def test_nobody_is_sent_to_a_dead_owner_or_in_a_circle(served: Served) -> None:
    """Row 17. While a killed owner's lock is there, the other proxy names it, says that it does not live, and how long
    to wait. It is started again before that: then it sends nobody to itself, although the lock has its name."""
    history, stream = History(), "dead-owner"
    author = Author(history, stream)
    async with Asking() as asking:
        owner, other = served.writers[:2]
        assert (await author.write_to(asking, owner)).code == pb.OK
        owner.kill()
        result = await author.write_to(asking, other, tried=[owner.address])
        if result.code != pb.OK:  # On a machine that is busy its session may be over by now.
            assert (result.code, result.owner.port, result.owner_live) == (pb.NOT_OWNER, owner.port, False)
            assert 0 < result.retry_after_ms <= SESSION_S / 4 * 1000
        owner.start()
        answers: list[pb.Result] = []

        async def is_stored() -> bool:
            answers.append(await author.write_to(asking, owner))
            return answers[-1].code == pb.OK

        if result.code == pb.OK:
            await asking.release(other, stream)
        await asyncio.to_thread(owner.wait_ready)
        await eventually(is_stored, within_s=30, what="the owner has it again")
        assert not any(answer.owner.port == owner.port for answer in answers), answers
        assert all(answer.applied == pb.NO for answer in answers[:-1]), answers
    await proven(served, history)


async def test_a_stream_that_is_made_again_has_nothing_of_the_one_before(served: Served) -> None:
    """Row 18. Its writer is told that it is gone, its reader's end is that it is gone, and whoever reads the new stream
    of the same name, by the same proxy, sees the new records only. Writers that may create it go on in the new one."""
    stream, rounds = "made-again", 10 if IS_LONG else 2
    async with served.connect() as client:
        for number in range(rounds):
            await client.create_stream(stream)
            async with (
                client.open_writer(stream, create_if_missing=False) as writer,
                client.open_reader(stream) as reader,
            ):
                await writer.append_many([b"%d %d" % (number, each) for each in range(3)])
                assert [(await anext(reader)).payload for _ in range(3)] == [b"%d %d" % (number, i) for i in range(3)]
                await client.delete_stream(stream)
                with pytest.raises(NoSuchStream):
                    await writer.append(b"late")
                with pytest.raises(NoSuchStream):
                    async with asyncio.timeout(30):
                        await anext(reader)
        async with client.open_writer(stream) as writer, client.open_reader(stream, create_if_missing=True) as reader:
            await writer.append(b"new")
            assert (await anext(reader)).payload == b"new"
    assert [record.payload for record in await served.stored(stream)] == [b"new"]
