"""Writers through proxies: order, redirects, lost answers, windows, and what is told when nothing helps."""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from tests.unit.proxy.client.scripted_proxies import (
    CLIENT,
    SETTINGS,
    LoseAnswer,
    Never,
    Proxies,
    owner_of,
    with_proxies,
)

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream.record_sets import decode_record_set
from quire.errors import (
    AppendOutcomeUnknown,
    HandleClosed,
    InvalidArgument,
    NoSuchStream,
    NotOwner,
    Outcome,
    OverCapacity,
    ProxyUnreachable,
    StreamUnavailable,
    TxidOutOfOrder,
    WriterFenced,
)
from quire.types import DLSN, EntryId, Lssn, SlotId


def place(lssn: int, entry: int, slot: int) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry), SlotId(slot))


def test_records_are_stored_in_order_and_each_call_gets_its_places() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            assert writer.last_txid == 7, "as the owner told"
            assert await writer.append(b"a") == place(1, 0, 0)
            assert await writer.append_many([b"b", b"c"]) == [place(1, 1, 0), place(1, 1, 1)]
            assert await writer.append_many([]) == []
            told = writer.statistics()
            assert (told.records, told.last_dlsn, told.lssn) == (3, place(1, 1, 1), 1)
            assert writer.last_txid == 101
        assert writer.is_closed
        assert world.stream("s").payloads == [b"a", b"b", b"c"]

    with_proxies(check)


def test_what_is_appended_in_one_turn_is_one_batch() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            await writer.append(b"first")
            await asyncio.gather(*(writer.append(b"%d" % number) for number in range(50)))
        assert len(proxy.batches) < 10
        assert sorted(world.stream("s").payloads[1:]) == sorted(b"%d" % number for number in range(50))

    with_proxies(check)


def test_a_redirect_is_followed_and_remembered() -> None:
    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        for name in ("s", "t", "u"):
            world.stream(name).owner = p2.address
        async with world.client() as client:
            for name in ("s", "t", "u"):
                async with client.open_writer(name) as writer:
                    await writer.append(b"a")
                    await writer.append(b"b")
        assert not p1.batches, "opening a writer finds the owner"
        assert len(p2.batches) == 6

    with_proxies(check)


def test_a_move_under_a_full_pipeline_keeps_the_order_and_nobody_notices() -> None:
    """Row 16: the first refused batch says NOT_OWNER, those behind it PREDECESSOR_FAILED."""

    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        world.stream("s").owner = p1.address
        async with world.client() as client, client.open_writer("s") as writer:
            appends = []
            for number in range(60):
                appends.append(asyncio.create_task(writer.append(b"%02d" % number)))
                await world.pass_time(0.0003)
                if number == 30:
                    world.stream("s").owner, world.stream("s").epoch = p2.address, 2
            dlsns = await asyncio.gather(*appends)
        assert world.stream("s").payloads == [b"%02d" % number for number in range(60)]
        assert dlsns == sorted(dlsns)
        assert p1.batches
        assert p2.batches

    with_proxies(check)


def test_an_owner_that_dies_is_followed_when_its_session_ends() -> None:
    """Row 1: nothing is lost, nothing is twice there, and it takes the rest of the session and little more."""

    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        world.stream("s").owner = p1.address
        loop = asyncio.get_running_loop()
        async with world.client() as client, client.open_writer("s") as writer:
            await writer.append(b"0")
            await world.kill("p1")
            died_s = loop.time()
            loop.call_later(2.0, world.expire, "p1")
            appends = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(1, 6)]
            await asyncio.gather(*appends)
            assert loop.time() - died_s < 2.5
        assert sorted(world.stream("s").payloads) == [b"%d" % number for number in range(6)]
        assert len(p2.batches) < 100, "it was not hammered"

    with_proxies(check)


def test_an_answer_that_is_lost_does_not_store_a_record_twice() -> None:
    """Row 4: the batch is sent again under its numbers, and the owner says where it is."""

    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            await writer.append(b"a")
            proxy.script.append(LoseAnswer)
            assert await writer.append(b"b") == place(1, 1, 0)
            assert await writer.append(b"c") == place(1, 2, 0)
        assert world.stream("s").payloads == [b"a", b"b", b"c"]
        first, again = [batch for batch in proxy.batches if batch.records[0] == b"b"]
        assert first.producer == again.producer
        assert again.attempt > first.attempt

    with_proxies(check)


def test_without_producer_ids_a_lost_answer_is_an_unknown_outcome() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        options = replace(CLIENT, producer_ids=False)
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            proxy.script.append(LoseAnswer)
            with pytest.raises(AppendOutcomeUnknown) as unknown:
                await writer.append(b"a")
            assert unknown.value.outcome is Outcome.UNKNOWN
            await writer.append(b"b")
            proxy.script.append(WriterFenced("another one writes"))
            with pytest.raises(AppendOutcomeUnknown):
                await writer.append(b"c")
        assert world.stream("s").payloads == [b"a", b"b"]
        assert not any(batch.HasField("producer") for batch in proxy.batches)

    with_proxies(check)


def test_whoever_allows_it_gets_records_at_least_once() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        options = replace(CLIENT, producer_ids=False, at_least_once=True)
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            proxy.script.append(LoseAnswer)
            await writer.append(b"a")
        assert world.stream("s").payloads == [b"a", b"a"]

    with_proxies(check)


def test_a_batch_that_no_proxy_would_take_fails_alone_and_those_behind_it_go_on() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            await writer.append(b"a")
            proxy.script.append(TxidOutOfOrder("too low"))
            refused = asyncio.create_task(writer.append(b"b", txid=1))
            await world.pass_time(0.0001)
            rest = [asyncio.create_task(writer.append(payload, txid=500)) for payload in (b"c", b"d")]
            with pytest.raises(TxidOutOfOrder):
                await refused
            await asyncio.gather(*rest)
        assert sorted(world.stream("s").payloads) == [b"a", b"c", b"d"]
        producers = {bytes(batch.producer.id) for batch in proxy.batches}
        assert len(producers) == 2, "what follows a gap is another producer's"

    with_proxies(check)


def test_a_duplicate_whose_places_are_forgotten_is_told_as_what_it_is() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        world.stream("s").is_forgetful = True
        async with world.client() as client, client.open_writer("s") as writer:
            proxy.script.append(LoseAnswer)
            with pytest.raises(AppendOutcomeUnknown, match="are in stream") as told:
                await writer.append(b"a")
            assert told.value.facts["is_stored"]
            await writer.append(b"b")
        assert world.stream("s").payloads == [b"a", b"b"]

    with_proxies(check)


def test_an_owner_that_cannot_be_reached_by_us_alone_is_waited_for_and_then_told() -> None:
    """Row 10: others say that it lives. Nothing was sent, so nothing can have happened."""

    async def check(world: Proxies) -> None:
        p1 = await world.start("p1")
        p2 = await world.start("p2")
        world.stream("s").owner = p1.address
        world.sim.network.partition("client", "p1")
        async with world.client("p2", settings=replace(SETTINGS, call_timeout_s=4.0)) as client:
            with pytest.raises((StreamUnavailable, ProxyUnreachable)) as refused:
                async with client.open_writer("s"):
                    raise AssertionError
            assert refused.value.outcome is Outcome.NOT_APPLIED
        assert world.stream("s").owner == p1.address, "nobody was forced to give it up"
        assert len(p2.requests) < 60

    with_proxies(check)


def test_an_append_ends_by_its_deadline_and_says_whether_it_may_be_stored() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        loop = asyncio.get_running_loop()
        async with world.client() as client, client.open_writer("s") as writer, client.open_writer("t") as other:
            begun_s = loop.time()
            proxy.script.append(Never)
            with pytest.raises(AppendOutcomeUnknown):
                await other.append(b"a")
            assert loop.time() - begun_s == pytest.approx(CLIENT.append_timeout_s, abs=0.1)
            proxy.script.extend([OverCapacity("too much", retry_after_ms=300)] * 100)
            begun_s = loop.time()
            with pytest.raises(OverCapacity) as refused:
                await writer.append(b"b")
            assert refused.value.outcome is Outcome.NOT_APPLIED
            assert loop.time() - begun_s == pytest.approx(CLIENT.append_timeout_s, abs=0.1)
            assert 5 < len(proxy.batches) < 25, "it asked again, and not too often"

    with_proxies(check)


def test_a_proxy_that_falls_silent_is_taken_for_dead() -> None:
    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        world.stream("s").owner = p1.address
        loop = asyncio.get_running_loop()
        async with world.client("p2") as client, client.open_writer("s") as writer:
            await writer.append(b"a")
            p1.is_silent = True
            loop.call_later(2.0, world.expire, "p1")
            begun_s = loop.time()
            await writer.append(b"b")
            assert loop.time() - begun_s < CLIENT.silence_s + 1.0
        assert p2.batches

    with_proxies(check)


def test_a_proxy_that_is_slow_but_answers_pings_is_waited_for() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        options = replace(CLIENT, append_timeout_s=20.0)
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            proxy.hold = asyncio.Event()
            asyncio.get_running_loop().call_later(8.0, proxy.hold.set)
            await writer.append(b"a")
        assert len(proxy.batches) == 1

    with_proxies(check)


def test_windows_of_the_proxy_are_kept() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        proxy.window_batches, proxy.window_bytes = 4, 1000
        proxy.hold = asyncio.Event()
        async with world.client() as client, client.open_writer("s") as writer, client.open_writer("t") as other:
            appends = []
            for number in range(20):
                appends.append(asyncio.create_task(writer.append(b"%d" % number * 100)))
                appends.append(asyncio.create_task(other.append(b"%d" % number)))
                await world.pass_time(0.01)
            assert proxy.in_flight_most <= 3
            assert sum(batch.ByteSize() for batch in proxy.batches) <= 1000
            proxy.hold.set()
            await asyncio.gather(*appends)
        assert world.stream("t").payloads == [b"%d" % number for number in range(20)]

    with_proxies(check)


def test_a_proxy_that_says_go_away_is_left_without_a_failed_write() -> None:
    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        world.stream("s").owner = p1.address
        async with world.client() as client, client.open_writer("s") as writer:
            await writer.append(b"a")
            p1.go_aways.append(pb.GoAway(suggested_owner=owner_of(p2.address)))
            await writer.append(b"b")
            world.stream("s").owner = p2.address
            await world.pass_time(0.1)
            await writer.append(b"c")
        assert [batch.records[0] for batch in p2.batches] == [b"c"]
        assert len(p1.batches) == 2

    with_proxies(check)


def test_proxies_that_name_each_other_are_asked_with_pauses_until_the_deadline() -> None:
    """Row 17."""

    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        async with world.client() as client, client.open_writer("s") as writer:
            p1.script.extend(NotOwner("go", proxy=owner_of(p2.address), owner_live=True) for _ in range(500))
            p2.script.extend(NotOwner("go", proxy=owner_of(p1.address), owner_live=True) for _ in range(500))
            with pytest.raises(StreamUnavailable):
                await writer.append(b"a")
            assert len(p1.batches) + len(p2.batches) < 80

    with_proxies(check)


def test_many_writers_of_one_stream_write_at_the_same_time() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")

        async def write(host: str, letter: bytes) -> None:
            async with world.client(host=host) as client, client.open_writer("s") as writer:
                for number in range(20):
                    await writer.append(letter + b"%02d" % number)

        await asyncio.gather(*(write(f"client-{letter}", letter.encode()) for letter in "abcde"))
        payloads = world.stream("s").payloads
        assert len(payloads) == 100
        for letter in b"abcde":
            assert [payload for payload in payloads if payload[0] == letter] == sorted(
                payload for payload in payloads if payload[0] == letter
            )
        assert len({bytes(batch.producer.id) for batch in proxy.batches}) == 5

    with_proxies(check)


def test_a_record_set_is_one_batch_and_gets_a_place_for_each_member() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            dlsns = await writer.append_set([b"a", b"b", b"c"], txid=5, compression="lz4")
            assert dlsns == [place(1, 0, slot) for slot in range(3)]
            await writer.append(b"d", txid=6)
        batch, after = proxy.batches
        assert (batch.record_set.count, list(batch.txids), batch.producer.first_seq) == (3, [5], 1)
        assert after.producer.first_seq == 4

    with_proxies(check)


def test_a_large_call_is_sent_in_parts() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        options = replace(CLIENT, batch_bytes_max=1000)
        payloads = [b"%03d" % number * 50 for number in range(40)]
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            dlsns = await writer.append_many(payloads)
        assert len(dlsns) == 40
        assert dlsns == sorted(dlsns)
        assert world.stream("s").payloads == payloads
        assert max(batch.ByteSize() for batch in proxy.batches) < 1100

    with_proxies(check)


def test_a_call_of_more_records_than_a_proxy_takes_is_sent_in_parts_and_gets_one_answer() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        proxy.script.extend([None, LoseAnswer])
        payloads = [b"%d" % number for number in range(40_000)]
        async with world.client() as client, client.open_writer("s") as writer:
            dlsns = await writer.append_many(payloads, txids=range(40_000))
        assert len(set(dlsns)) == 40_000
        assert dlsns == sorted(dlsns)
        assert world.stream("s").payloads == payloads
        assert {len(batch.records) for batch in proxy.batches} == {16_384, 40_000 - 2 * 16_384}
        assert all(len(batch.txids) == len(batch.records) for batch in proxy.batches)

    with_proxies(check)


def test_calls_that_are_sent_together_are_no_more_records_than_a_proxy_takes() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        options = replace(CLIENT, batch_records_max=10)
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            await writer.append(b"first")
            await asyncio.gather(*(writer.append_many([b"x"] * count) for count in (4, 4, 4, 10, 11, 1)))
        assert len(world.stream("s").payloads) == 35
        sizes = [len(batch.records) for batch in proxy.batches]
        assert sum(sizes) == 35
        assert max(sizes) == 10

    with_proxies(check)


def test_a_set_of_more_members_than_a_proxy_takes_is_several_sets() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        proxy.script.extend([None, LoseAnswer])
        options = replace(CLIENT, batch_records_max=4)
        async with world.client(client_settings=options) as client, client.open_writer("s") as writer:
            dlsns = await writer.append_set([b"%d" % number for number in range(10)], txid=5)
            await writer.append(b"behind", txid=6)
        assert len(set(dlsns)) == 10
        assert dlsns == sorted(dlsns)
        sent = {batch.producer.first_seq: batch for batch in proxy.batches if batch.HasField("record_set")}
        assert [(seq, sent[seq].record_set.count, list(sent[seq].txids)) for seq in sorted(sent)] == [
            (1, 4, [5]),
            (5, 4, [5]),
            (9, 2, [5]),
        ]
        found = [member for seq in sorted(sent) for member in decode_record_set(sent[seq].record_set.data)]
        assert found == [b"%d" % number for number in range(10)]
        assert proxy.batches[-1].producer.first_seq == 11

    with_proxies(check)


def test_a_set_of_more_bytes_than_a_proxy_takes_is_several_sets_though_it_is_compressed() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client, client.open_writer("s") as writer:
            dlsns = await writer.append_set([bytes(500_000)] * 10, compression="lz4")
        assert len(set(dlsns)) == 10
        assert [batch.record_set.count for batch in proxy.batches] == [2] * 5

    with_proxies(check)


def test_a_writer_waits_while_too_much_is_not_stored() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        proxy.hold = asyncio.Event()
        async with world.client() as client, client.open_writer("s", window_records_max=5) as writer:
            appends = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(12)]
            await world.pass_time(0.5)
            assert writer.statistics().waiting_records == 5
            appends[7].cancel()
            proxy.hold.set()
            done = await asyncio.gather(*appends, return_exceptions=True)
            assert sum(isinstance(each, DLSN) for each in done) == 11
        assert len(world.stream("s").payloads) in (11, 12), "what is cancelled may be in the stream"

    with_proxies(check)


def test_a_closed_writer_takes_nothing_and_has_stored_what_it_took() -> None:
    async def check(world: Proxies) -> None:
        proxy = await world.start("p1")
        async with world.client() as client:
            async with client.open_writer("s") as writer:
                appends = [asyncio.create_task(writer.append(b"%d" % number)) for number in range(5)]
                await world.pass_time(0.0001)
                await writer.aclose()
            assert len(world.stream("s").payloads) == 5
            await asyncio.gather(*appends)
            with pytest.raises(HandleClosed):
                await writer.append(b"late")
            with contextlib.suppress(ZeroDivisionError):
                async with client.open_writer("s") as writer:
                    proxy.hold = asyncio.Event()
                    sent = asyncio.create_task(writer.append(b"sent"))
                    await world.pass_time(0.1)
                    asyncio.get_running_loop().call_later(0.1, proxy.hold.set)
                    _ = 1 / 0
            assert await sent == place(1, world.stream("s").entries - 1, 0)

    with_proxies(check)


def test_a_stream_that_may_not_be_created_is_missed_when_its_writer_is_opened() -> None:
    async def check(world: Proxies) -> None:
        await world.start("p1")
        async with world.client() as client:
            with pytest.raises(NoSuchStream):
                async with client.open_writer("s", create_if_missing=False):
                    raise AssertionError
            with pytest.raises(InvalidArgument, match="ack_quorum") as refused:
                client.open_writer("s", ack_quorum=3)
            assert "where the proxies are started" in refused.value.hint

    with_proxies(check)


def test_truncating_and_sealing_go_to_the_owner() -> None:
    async def check(world: Proxies) -> None:
        p1, p2 = await world.start("p1"), await world.start("p2")
        world.stream("s").owner = p2.address
        async with world.client() as client, client.open_writer("s") as writer:
            assert await writer.truncate(place(1, 4, 0)) == 2
            await writer.seal()
        assert [name for name, _, _ in p2.requests] == ["Heartbeat", "Truncate", "Seal"]
        assert len(p1.requests) <= 1

    with_proxies(check)
