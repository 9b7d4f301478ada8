"""Rows of the failure table that are about too much work, on real processes: see `support/servers/served_cluster.py`.

Slow readers, and many at the tail, are in `test_fan_out.py`. With QUIRE_TEST_LONG there is more of everything.
"""

import asyncio
import os
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from quire.codec import http2
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import PositionTruncated
from quire.rpc.serving.methods import HANDSHAKE, READ, WRITE, Method
from quire.stream.binding import create_namespace
from tests.integration.proxy.authors import Author, following, proven
from tests.support.raw_http2 import raw_client
from tests.support.servers.served_cluster import Asking, ProxyProcess, Served, ServedCluster, batch
from tests.support.streams.served_history import Followed, History
from tests.support.waiting import eventually

IS_LONG = bool(os.environ.get("QUIRE_TEST_LONG"))
COLD_STREAMS = 300 if IS_LONG else 20
PATIENCE_S = 30.0 * COLD_STREAMS / 20  # They are opened three at a time.
READERS = 200 if IS_LONG else 30
CALLS_MAX = 50  # Of one connection, where it is tried.

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("served"), pytest.mark.timeout(900 if IS_LONG else 300)]


async def test_after_a_start_of_everything_all_streams_are_owned_again(served: Served) -> None:
    """Row 9. All write proxies are killed and started again, and all streams are wanted at once, which is more than
    they open at a time: the rest is told to come again, and all of them are written within a client's patience."""
    history = History()
    authors = [Author(history, f"cold-{number}") for number in range(COLD_STREAMS)]
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(served.connect(append_timeout_s=PATIENCE_S))
        opened = [client.open_writer(author.written.stream) for author in authors]
        writers = [await stack.enter_async_context(each) for each in opened]
        for life in range(2):
            if life:
                for proxy in served.writers:
                    proxy.kill()
                    proxy.start()
            async with asyncio.TaskGroup() as group:
                for author, writer in zip(authors, writers, strict=True):
                    group.create_task(author.append(writer))
    for proxy in served.writers:
        proxy.wait_ready()
    refusals = sum(
        proxy.counted("quire_write_proxy_requests_total", code="STREAM_NOT_READY") for proxy in served.writers
    )
    assert refusals > 0
    owned = [set(proxy.debug("streams")) for proxy in served.writers]
    assert set().union(*owned) >= {author.written.stream for author in authors}
    assert not set.intersection(*owned)
    assert all(author.dlsns[0].lssn < author.dlsns[1].lssn for author in authors)
    await proven(served, History(history.written[::10]))


async def test_a_stream_over_its_limit_waits_and_others_do_not(limited: Served) -> None:
    """Row 12. Batches of a stream that is over its limit are refused before anything is stored, with the time to wait,
    and those behind them because of that. Another stream of the same call is not concerned. A client that waits as it
    is told gets everything stored, in order."""
    history, stream, other = History(), "hot", "cool"
    author = Author(history, stream)
    proxy = limited.writers[1]
    async with Asking() as asking, asking.pipeline(proxy) as call:
        assert (await asking.result(proxy, stream, b"first")).code == pb.OK
        assert (await asking.result(proxy, other, b"first")).code == pb.OK
        await call.send(pb.WriteRequest(open=pb.Open(client_id="pipeline")))
        assert (await anext(call)).HasField("opened")
        names = [stream] * 40 + [other]
        for number, name in enumerate(names, start=1):
            await call.send(pb.WriteRequest(batch=batch(name, b"%d" % number, call_seq=number)))
        acks: dict[int, pb.Result] = {}
        while len(acks) < len(names):
            ack = (await anext(call)).ack
            acks[ack.call_seq] = ack.result
        hot = [acks[number] for number in range(1, 41)]
        stored = sum(result.code == pb.OK for result in hot)
        assert 0 < stored < 40
        assert (hot[stored].code, hot[stored].applied) == (pb.OVER_CAPACITY, pb.NO)
        assert hot[stored].retry_after_ms > 0
        assert {(result.code, result.applied) for result in hot[stored + 1 :]} == {(pb.PREDECESSOR_FAILED, pb.NO)}
        assert acks[41].code == pb.OK
    async with (
        limited.connect(batch_bytes=1) as client,
        client.open_writer(stream) as writer,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(40):
            group.create_task(author.append(writer))
    assert proxy.counted("quire_write_proxy_limited_total", level="stream", kind="hard") > 0
    found = [record.payload for record in await limited.stored(stream)]
    assert found[: stored + 1] == [b"first", *(b"%d" % number for number in range(1, stored + 1))]
    await proven(limited, history)


async def test_limits_are_changed_while_a_proxy_runs(cluster: ServedCluster, tmp_path: Path) -> None:
    """Row 12, with limits from a file. A stream that may not be written is written once the file says so; a file that
    makes no sense changes nothing, and the proxy says what is wrong with it."""
    file = tmp_path / "limits.toml"
    file.write_text('[streams."metered/*"]\nrequests_hard = 0\n')
    served = await asyncio.to_thread(
        Served.start, cluster, "changed", writers=1, readers=0, options=("--limits", str(file))
    )
    (proxy,) = served.writers
    async with Asking() as asking:
        assert (await asking.result(proxy, "free", b"1")).code == pb.OK
        assert (await asking.result(proxy, "metered/a", b"1")).code == pb.OVER_CAPACITY
        file.write_text("[streams]\nmetered = 3\n")

        async def is_told() -> bool:
            return "limits.refused" in await asyncio.to_thread(proxy.log_end)

        await eventually(is_told, within_s=20, what="the proxy says that the file is wrong")
        assert (await asking.result(proxy, "metered/a", b"1")).code == pb.OVER_CAPACITY
        file.write_text("[streams.free]\nrequests_hard = 0\n")

        async def is_refused() -> bool:
            return (await asking.result(proxy, "free", b"2")).code == pb.OVER_CAPACITY

        await eventually(is_refused, within_s=20, what="the limit counts")
        assert (await asking.result(proxy, "metered/a", b"1")).code == pb.OK
    proxy.kill()


async def test_a_proxy_that_has_enough_takes_no_more_and_keeps_what_it_has(limited: Served) -> None:
    """Row 13. A proxy with as many streams as it may have sends clients to others; the ones that it has can be written.
    Only what is over its hard limit is refused, for a moment, and the other proxy is not concerned."""
    history = History()
    full, other = limited.writers
    async with Asking() as asking, limited.connect() as client:
        owned = [f"owned-{number}" for number in range(3 - len(full.debug("streams")))]
        for stream in owned:
            assert (await asking.result(full, stream, b"first")).code == pb.OK
        result = await asking.result(full, "one-more", b"first")
        assert (result.code, result.applied) == (pb.TOO_MANY_STREAMS, pb.NO)
        author = Author(history, "one-more")
        async with client.open_writer("one-more") as writer:
            await author.append(writer)
        assert await limited.owner_of("one-more") is other
        assert (await asking.result(full, owned[0], b"second")).code == pb.OK

        results = await asyncio.gather(*(asking.result(full, owned[each % 3], b"many") for each in range(120)))
        refused = [result for result in results if result.code != pb.OK]
        assert 0 < len(refused) < 120
        assert {(result.code, result.applied) for result in refused} == {(pb.OVER_CAPACITY, pb.NO)}
        assert min(result.retry_after_ms for result in refused) > 0
        assert (await author.write_to(asking, other)).code == pb.OK
        kept = Author(history, owned[0])
        async with client.open_writer(owned[0]) as writer:
            for _ in range(3):
                await kept.append(writer)
        assert await limited.owner_of(owned[0]) is full
    assert full.counted("quire_write_proxy_limited_total", level="proxy", kind="hard") > 0
    await proven(limited, history)


async def test_the_balancer_relieves_a_proxy_that_has_more_to_do_than_the_other(balanced: Served) -> None:
    """Row 13. One proxy has as many streams as it may have, all of them are written, and the other one has none: so
    streams move, until both have their share. Who writes notices nothing of it. Then the proxy that balances is killed:
    everything goes on, and when it is back the streams are spread again, by the other one."""
    history, streams = History(), [f"crowded-{number}" for number in range(8)]
    full = balanced.writers[0]
    authors = [Author(history, stream) for stream in streams]

    async def balancers() -> list[ProxyProcess]:
        metric = "quire_write_proxy_is_balancer"
        return [each for each in balanced.writers if await asyncio.to_thread(each.counted, metric)]

    async def is_spread() -> bool:
        owned = [set(await asyncio.to_thread(proxy.debug, "streams")) for proxy in balanced.writers]
        return all(len(each) >= 3 for each in owned)

    async with Asking() as asking, balanced.connect() as client, AsyncExitStack() as stack:
        for author in authors:
            assert (await author.write_to(asking, full)).code == pb.OK
        opened = [client.open_writer(stream) for stream in streams]
        writers = [await stack.enter_async_context(each) for each in opened]
        async with AsyncExitStack() as writing:
            for author, writer in zip(authors, writers, strict=True):
                await writing.enter_async_context(author.writing(writer))
            await eventually(is_spread, within_s=60, what="both have their share")
            for _ in range(5 if IS_LONG else 1):
                (balancer,) = await balancers()
                balancer.kill()
                balancer.start()
                await asyncio.to_thread(balancer.wait_ready)
                await eventually(is_spread, within_s=60, what="both have their share again")
        assert await balancers() != [balancer]
    await proven(balanced, history)


async def test_many_who_read_the_old_at_once_cost_one_read_of_each_entry(served: Served) -> None:
    """Row 20. The stream has ended, so that nothing of it is at hand: all readers start at once, at its beginning."""
    history, stream = History(), "read-by-many"
    author = Author(history, stream)
    (proxy,) = served.readers
    async with served.connect() as client:
        async with client.open_writer(stream) as writer:
            for _ in range(50):
                await author.append(writer, 2)
            await client.seal_stream(stream)
        before = proxy.counted("quire_read_proxy_read_entries_total")

        async def read() -> None:
            async with following(history, client, stream):
                pass

        await asyncio.gather(*(read() for _ in range(READERS)))
        entries = max(dlsn.entry_id for dlsn in author.dlsns) + 10  # There are some without records, at the end, too.
        assert proxy.counted("quire_read_proxy_read_entries_total") - before <= entries
    await proven(served, history)


async def test_a_call_that_waits_ends_with_its_caller(served: Served) -> None:
    """Row 20. Who asks for what is to come, and goes away, keeps no place at the proxy."""
    (proxy,) = served.readers
    async with served.connect() as client, Asking() as asking:
        await client.create_stream("waited-for")
        waiting = [asyncio.create_task(asking.fetch(proxy, "waited-for", wait_s=25.0)) for _ in range(3)]

        async def are_parked(count: int) -> bool:
            return await asyncio.to_thread(proxy.counted, "quire_read_proxy_parked_fetches") == count

        await eventually(lambda: are_parked(3), what="all of them wait")
        for call in waiting:
            call.cancel()
        await asyncio.wait(waiting)
        await eventually(lambda: are_parked(0), within_s=15, what="none of them is left")


def say(port: int, words: bytes) -> bytes:
    """Returns all that is said in return, until the other end hangs up."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(words)
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer


async def test_bad_clients_are_counted_and_nobody_else_is_concerned(served: Served) -> None:
    """Wrong protocols, calls that do not say whose they are, and requests to the gateway that make no sense: all of
    them are seen in the metrics of the proxy, while somebody writes through it."""
    history = History()
    author, proxy, reader = Author(history, "undisturbed"), served.writers[0], served.readers[0]

    async def counts() -> tuple[float, ...]:
        return await asyncio.to_thread(
            lambda: (
                proxy.counted("quire_serving_refused_total", cause="other_protocol"),
                proxy.counted("quire_serving_refused_total", cause="no_client_id"),
                reader.counted("quire_gateway_answers_total", status="404"),
            )
        )

    before = await counts()
    async with Asking() as asking, Asking(client_id="") as nobody:
        assert (await author.write_to(asking, proxy)).code == pb.OK
        for _ in range(3):
            await asyncio.to_thread(say, proxy.port, b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await nobody.result(proxy, "undisturbed", b"whose")).code == pb.UNAUTHENTICATED
            request = b"GET /nothing HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
            assert b" 404 " in await asyncio.to_thread(say, reader.gateway_port, request)
            assert (await author.write_to(asking, proxy)).code == pb.OK

        async def are_counted() -> bool:
            return all(now - then == 3 for now, then in zip(await counts(), before, strict=True))

        await eventually(are_counted, what="all of them are counted")
    await proven(served, history)


async def besiege(proxy: ProxyProcess, endless: Method, request: bytes, stack: AsyncExitStack) -> None:
    """Clients that stay, and do what nobody should: messages that are too large, large ones that never end, and more
    calls than a connection may have."""
    address = ("127.0.0.1", proxy.port)
    large, unending, many = [await stack.enter_async_context(raw_client(address)) for _ in range(3)]
    for client in (large, unending, many):
        client.hello()
    for _ in range(3):
        number = large.open(HANDSHAKE)
        large.send(http2.frame(http2.DATA, 0, number, http2.message_prefix(1 << 30)))
        await large.until(http2.HEADERS, number)
    for _ in range(5):
        number = unending.open(HANDSHAKE)
        unending.send(http2.frame(http2.DATA, 0, number, http2.message_prefix(8 << 20) + bytes(1000)))
    await unending.until(http2.HEADERS, number)
    numbers = [many.open(endless) for _ in range(2 * CALLS_MAX)]
    for number in numbers:
        many.message(number, request)
    _, _, _, code = await many.until(http2.RST_STREAM, numbers[CALLS_MAX])
    assert http2.number_of(code) == http2.REFUSED_STREAM


async def test_a_siege_of_large_messages_and_endless_calls_is_counted_and_nobody_else_is_concerned(
    cluster: ServedCluster,
) -> None:
    """Method: somebody writes through the write proxy and somebody follows through the read proxy, before, during and
    after bad clients came to both, which stay connected. All that is written is read, and nothing fails."""
    limits = [f"serving.calls_per_connection_max={CALLS_MAX}", "serving.incoming_bytes_max=40MiB"]
    await create_namespace(cluster.uri_of("besieged"))
    writers = cluster.launch_proxies("write", 1, *limits, namespace="besieged")
    readers = cluster.launch_proxies("read", 1, *limits, namespace="besieged")
    for proxy in (*writers, *readers):
        await asyncio.to_thread(proxy.wait_ready)
    served, history = Served(cluster, writers, readers), History()
    author = Author(history, "undisturbed")
    async with served.connect() as client:
        await client.create_stream("undisturbed")
        async with AsyncExitStack() as stack, following(history, client, "undisturbed") as followed:
            async with client.open_writer("undisturbed") as writer, author.writing(writer):
                await goes_on(author, followed)
                request = pb.ReadRequest(stream="undisturbed").SerializeToString()
                await besiege(writers[0], WRITE, b"", stack)
                await besiege(readers[0], READ, request, stack)
                await goes_on(author, followed)
            await client.seal_stream("undisturbed")
    for proxy in (*writers, *readers):
        for cause, count in (("message_too_large", 3), ("too_many_bytes", 3), ("too_many_calls", CALLS_MAX)):
            found = await asyncio.to_thread(proxy.counted, "quire_serving_refused_total", cause=cause)
            assert found == count, f"{proxy.name}: {cause}"
    await proven(served, history)


async def goes_on(author: Author, followed: Followed) -> None:
    """More is written, and read, than when this was called."""
    written, read = len(author.dlsns), len(followed.records)

    async def is_so() -> bool:
        return len(author.dlsns) > written + 5 and len(followed.records) > read + 5

    await eventually(is_so, within_s=60, what="others go on")


async def test_who_begins_at_a_place_that_was_truncated_is_told(served: Served) -> None:
    """Row 20. Either the reader fails and hears where the stream begins now, or it goes on there, as it asked for."""
    stream = "truncated"
    async with served.connect() as client, client.open_writer(stream) as writer, Asking() as asking:
        dlsns = await writer.append_many([b"%d" % number for number in range(10)])
        await asking.release(await served.owner_of(stream), stream)  # The segment ends with it.
        dlsns += await writer.append_many([b"10"])
        first = await client.truncate_stream(stream, before=dlsns[6])
        assert first == dlsns[6]

        async def is_known() -> bool:
            """Read proxies hear of it from the metadata."""
            try:
                async with client.open_reader(stream, start=dlsns[0]) as reader:
                    await anext(reader)
            except PositionTruncated as error:
                assert error.facts["earliest"] == first
                return True
            return False

        await eventually(is_known, within_s=30, what="the reader is told")
        async with client.open_reader(stream, start=dlsns[0], skip_truncated=True) as reader:
            assert [(await anext(reader)).payload for _ in range(5)] == [b"6", b"7", b"8", b"9", b"10"]
