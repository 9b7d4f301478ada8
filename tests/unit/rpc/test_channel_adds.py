"""Adds through a channel: in runs, in any order, twice, late, never, and against a bookie that does not keep up."""

import asyncio
import itertools
from typing import Any

import pytest
from tests.support.scripted_bookie import KEY, LEDGER, Sink, World, add_frame, add_ok, ids, on_channel

from quire.codec.digest import Buffer
from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_adds import AddResponses
from quire.codec.wire.v3_messages import DEFERRED_SYNC, HIGH_PRIORITY, AddRequest, Operation, Request
from quire.errors import BookieBusy, BookieOutcomeUnknown, BookieUnavailable, InvalidArgument, QuireError
from quire.rpc import AddAnswers, ChannelSettings
from quire.rpc.connection import Connection
from quire.testing import SimDeadlock, SimTransport, SimUnhandled
from quire.types import EntryId, LedgerId

OK = Status.EOK
SEEDS = range(20)


@pytest.mark.parametrize("seed", SEEDS)
def test_frames_go_out_as_they_are_and_answers_come_back_in_any_order(seed: int) -> None:
    """The network cuts both ways into pieces of its own, and the bookie answers in an order of its own."""

    async def check(world: World) -> None:
        sink = Sink()
        frames = [frame for start in range(0, 200, 20) for frame in world.send(range(start, start + 20), sink)]
        await world.bookie.hear(200)
        assert world.bookie.received == b"".join(frames)
        order = sorted(range(200), key=lambda _: world.sim.rng.random())
        world.bookie.say(*(add_ok(entry_id) for entry_id in order))
        await sink.until(lambda: len(sink.answers) == 200)
        assert sink.answers == [(entry_id, OK) for entry_id in order]
        assert sink.lost == []

    on_channel(check, seed=seed)


def test_answers_that_arrive_together_are_handed_over_together() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        world.send(range(500), sink)
        await world.bookie.hear(500)
        world.bookie.say(*(add_ok(entry_id) for entry_id in range(500)))
        await sink.until(lambda: len(sink.answers) == 500)
        assert len(sink.batches) <= 4, "the network cuts one write into four pieces at most"

    on_channel(check)


def test_all_that_is_sent_in_one_turn_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[int] = []
    write = SimTransport.write

    def counting(transport: SimTransport, data: bytes) -> None:
        writes.append(len(data))
        write(transport, data)

    monkeypatch.setattr(SimTransport, "write", counting)

    async def check(world: World) -> None:
        sink = Sink()
        frames = [frame for start in range(0, 50, 5) for frame in world.send(range(start, start + 5), sink)]
        sent = sum(map(len, frames))
        assert world.channel.unsent_bytes == sent
        await world.bookie.hear(50)
        assert writes == [sent]
        assert world.channel.unsent_bytes == 0

    on_channel(check)


def test_each_ledger_hears_of_its_own_entries() -> None:
    """Two ledgers with the same entry ids on one connection; one of them is refused."""

    async def check(world: World) -> None:
        mine, other, other_ledger = Sink(), Sink(), LedgerId(8)
        world.send(range(2), mine)
        frames = [add_frame(entry_id, ledger_id=other_ledger) for entry_id in range(2)]
        world.channel.send_adds(other_ledger, frames, range(2), other)
        await world.bookie.hear(4)
        refusals = [add_ok(entry_id, ledger_id=other_ledger, status=Status.EFENCED) for entry_id in range(2)]
        world.bookie.say(refusals[0], add_ok(1), refusals[1], add_ok(0))
        await mine.until(lambda: len(mine.answers) == 2)
        await other.until(lambda: len(other.answers) == 2)
        assert mine.answers == [(1, OK), (0, OK)]
        assert other.answers == [(0, Status.EFENCED), (1, Status.EFENCED)]

    on_channel(check)


def test_answers_to_nothing_are_ignored() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        world.send(range(1), sink)
        await world.bookie.hear(1)
        world.bookie.say(
            add_ok(5),
            add_ok(0, ledger_id=LedgerId(99)),
            v2.read_response_prefix(Status.ENOENTRY, LEDGER, EntryId(0)),
            *v2.batch_read_response_parts(Status.ENOENTRY, LEDGER, EntryId(0), 1),  # type: ignore[arg-type]
            AddResponses().encode(1, OK, LEDGER, EntryId(0)),
            v3.encode_refusal(1, Operation.READ_LAC, Status.EIO),
            add_ok(0),
            add_ok(0),
        )
        await sink.until(lambda: bool(sink.answers))
        await world.pass_time(10)
        assert sink.answers == [(0, OK)]
        assert sink.lost == []
        assert not world.channel.closed

    on_channel(check)


def test_an_entry_in_flight_twice_is_answered_twice() -> None:
    async def check(world: World) -> None:
        first, second = Sink(), Sink()
        world.send(range(3), first)
        world.send(ids(1, 1), second)
        await world.bookie.hear(5)
        world.bookie.say(add_ok(1), add_ok(1, status=Status.EFENCED), add_ok(1))
        await second.until(lambda: len(second.answers) == 2)
        assert first.answers == [(1, OK)]
        assert second.answers == [(1, Status.EFENCED), (1, OK)]

    on_channel(check)


def test_adds_without_an_answer_are_lost_at_their_deadline() -> None:
    async def check(world: World) -> None:
        sink, began = Sink(), world.sim.loop.time()
        world.send(range(4), sink)
        await world.bookie.hear(4)
        world.bookie.say(add_ok(2))
        await sink.until(lambda: bool(sink.lost))
        assert 5.0 <= world.sim.loop.time() - began <= 5.2
        [(entry_ids, error)] = sink.lost
        assert entry_ids == [0, 1, 3]
        assert isinstance(error, BookieOutcomeUnknown)
        world.bookie.say(add_ok(0))  # Too late.
        world.send(range(4, 5), sink)
        await world.bookie.hear(5)
        world.bookie.say(add_ok(4))
        await sink.until(lambda: len(sink.answers) == 2)
        assert sink.answers == [(2, OK), (4, OK)], "the channel lives on, and the late answer is dropped"

    on_channel(check)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_add_ends_once_when_the_connection_breaks(seed: int) -> None:
    async def check(world: World) -> None:
        sink = Sink()
        world.send(range(100), sink)
        await world.bookie.hear(100)
        world.bookie.say(*(add_ok(entry_id) for entry_id in range(0, 100, 2)))
        world.sim.loop.call_later(world.sim.rng.uniform((0, 0.01)), world.sim.network.reset_all, "bookie")
        await world.channel.wait_closed()
        answered = [entry_id for entry_id, _ in sink.answers]
        assert sorted(answered + sink.lost_ids) == list(range(100))
        assert all(isinstance(error, BookieOutcomeUnknown) for _, error in sink.lost)
        with pytest.raises(BookieUnavailable, match="broke"):
            world.send(range(100, 101), sink)
        assert 100 not in sink.lost_ids, "it was refused, which is all there is to say"

    on_channel(check, seed=seed)


def test_a_sink_may_send_from_within_its_callbacks() -> None:
    async def check(world: World) -> None:
        class Chain(Sink):
            def on_add_answers(self, answers: AddAnswers) -> None:
                super().on_add_answers(answers)
                if len(self.answers) < 5:
                    world.channel.send_adds(LEDGER, [add_frame(len(self.answers))], ids(len(self.answers)), self)

        sink = Chain()
        world.send(range(1), sink)
        for entry_id in range(5):
            await world.bookie.hear(entry_id + 1)
            world.bookie.say(add_ok(entry_id))
        await sink.until(lambda: len(sink.answers) == 5)

    on_channel(check)


def test_sending_again_what_was_lost_adds_no_second_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: list[float] = []
    look = Connection._look_at_deadlines

    def counting(channel: Connection) -> None:
        ticks.append(asyncio.get_running_loop().time())
        look(channel)

    monkeypatch.setattr(Connection, "_look_at_deadlines", counting)

    async def check(world: World) -> None:
        class Stubborn(Sink):
            def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
                super().on_add_lost(entry_ids, error)
                world.channel.send_adds(LEDGER, [add_frame(entry_id) for entry_id in entry_ids], entry_ids, self)

        sink = Stubborn()
        world.send(range(2), sink)
        await sink.until(lambda: len(sink.lost) == 4)
        assert all(later - earlier > 0.09 for earlier, later in itertools.pairwise(ticks))
        assert len(ticks) > 190

    on_channel(check)


def test_one_ledgers_bug_does_not_cost_another_its_answers() -> None:
    """It is not hidden either: the loop hears of it, and a simulation fails."""
    good = LedgerId(8)
    told: list[Any] = []

    class Broken(Sink):
        def on_add_answers(self, answers: AddAnswers) -> None:
            raise ZeroDivisionError("a bug")

    class Good(Sink):
        def on_add_answers(self, answers: AddAnswers) -> None:
            told.extend((entry_id, status) for status, entry_ids in answers for entry_id in entry_ids)

    async def check(world: World) -> None:
        world.send(range(1), Broken())
        world.channel.send_adds(good, [add_frame(0, ledger_id=good)], range(1), Good())
        world.channel.data_received(add_ok(0) + add_ok(0, ledger_id=good))  # By hand: they have to arrive together.

    with pytest.raises(SimUnhandled, match="a bug"):
        on_channel(check)
    assert told == [(0, OK)]


def test_nothing_ticks_while_nothing_waits() -> None:
    """An idle channel costs nothing: without timers a simulation in which all wait is a deadlock."""

    async def check(world: World) -> None:
        sink = Sink()
        world.send(range(3), sink)
        await world.bookie.hear(3)
        world.bookie.say(*(add_ok(entry_id) for entry_id in range(3)))
        await asyncio.Event().wait()

    with pytest.raises(SimDeadlock):
        on_channel(check)


# --- Version 3


def test_an_add_of_version_3_carries_all_its_flags() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        entry: list[Buffer] = [b"h" * 32, memoryview(b"pay"), bytearray(b"load")]
        world.channel.send_add_v3(LEDGER, EntryId(4), KEY, entry, sink)
        world.channel.send_add_v3(
            LEDGER, EntryId(5), KEY, entry, sink, write_flags=DEFERRED_SYNC, recovery=True, high_priority=True
        )
        plain, special = await world.bookie.hear(2)
        body = b"h" * 32 + b"payload"
        assert plain == Request(1, Operation.ADD_ENTRY, AddRequest(LEDGER, EntryId(4), KEY, body))
        assert special == Request(
            2,
            Operation.ADD_ENTRY,
            AddRequest(LEDGER, EntryId(5), KEY, body, DEFERRED_SYNC, True),
            priority=HIGH_PRIORITY,
        )
        say = AddResponses().encode
        world.bookie.say(say(2, Status.EREADONLY, LEDGER, EntryId(5)), say(1, OK, LEDGER, EntryId(4)))
        await sink.until(lambda: len(sink.answers) == 2)
        assert sink.answers == [(5, Status.EREADONLY), (4, OK)]

    on_channel(check)


def test_an_answer_without_ids_is_known_by_its_transaction() -> None:
    """A bookie that refuses before it looks at the request leaves the content out."""

    async def check(world: World) -> None:
        sink = Sink()
        world.channel.send_add_v3(LEDGER, EntryId(4), KEY, [b"e" * 40], sink)
        await world.bookie.hear(1)
        world.bookie.say(v3.encode_refusal(1, Operation.ADD_ENTRY, Status.EUA))
        await sink.until(lambda: bool(sink.answers))
        assert sink.answers == [(4, Status.EUA)]

    on_channel(check)


def test_adds_of_version_3_are_lost_like_the_others() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        for entry_id in ids(1, 2, 3):
            world.channel.send_add_v3(LEDGER, entry_id, KEY, [b"e" * 40], sink)
        await world.bookie.hear(3)
        world.bookie.say(AddResponses().encode(2, OK, LEDGER, EntryId(2)))
        await sink.until(lambda: bool(sink.lost))
        assert sink.answers == [(2, OK)]
        assert sink.lost_ids == [1, 3]

    on_channel(check)


def test_an_entry_too_large_for_a_frame_is_refused_and_costs_nothing_else() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        with pytest.raises(InvalidArgument, match="exceeds the limit"):
            world.channel.send_add_v3(LEDGER, EntryId(1), KEY, [bytes(2000)], sink)
        world.channel.send_add_v3(LEDGER, EntryId(2), KEY, [bytes(900)], sink)
        await world.bookie.hear(1)
        assert sink.lost == []

    on_channel(check, settings=ChannelSettings(frame_bytes_max=1000))


# --- A bookie that does not keep up

SMALL = ChannelSettings(unsent_bytes_high=10_000, unsent_bytes_max=300_000, request_timeout_s=1000)


def test_a_slow_bookie_makes_the_channel_unwritable_until_it_reads_again() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        world.bookie.transport.pause_reading()
        frames = [add_frame(entry_id, payload=bytes(1000)) for entry_id in range(200)]
        sent = 0
        for entry_id, frame in enumerate(frames):  # The simulated kernels take 64 KiB.
            if not world.channel.is_writable:
                break
            world.channel.send_adds(LEDGER, [frame], ids(entry_id), sink)
            sent += 1
            await asyncio.sleep(0)
        assert 60 < sent < 100
        assert 10_000 < world.channel.unsent_bytes < 13_000
        waiter = asyncio.create_task(world.channel.wait_writable())
        await world.pass_time(1)
        assert not waiter.done()
        world.bookie.transport.resume_reading()
        await waiter
        assert world.channel.is_writable
        await world.bookie.hear(sent)

    on_channel(check, settings=SMALL)


def test_sending_in_one_turn_makes_the_channel_unwritable_at_once() -> None:
    """The transport knows nothing of this turn's bytes yet."""

    async def check(world: World) -> None:
        sink, entry_id = Sink(), 0
        while world.channel.is_writable:
            world.channel.send_adds(LEDGER, [add_frame(entry_id, payload=bytes(1000))], ids(entry_id), sink)
            entry_id += 1
        assert 9 <= entry_id <= 11
        await world.channel.wait_writable()
        assert world.channel.is_writable

    on_channel(check, settings=SMALL)


def test_above_the_bound_adds_and_calls_are_refused() -> None:
    async def check(world: World) -> None:
        sink = Sink()
        world.bookie.transport.pause_reading()
        frame = add_frame(0, payload=bytes(1000))
        sent = 0
        while world.channel.unsent_bytes < SMALL.unsent_bytes_max:
            world.channel.send_adds(LEDGER, [frame], ids(sent), sink)
            sent += 1
        with pytest.raises(BookieBusy):
            world.channel.send_adds(LEDGER, [frame], ids(sent), sink)
        with pytest.raises(BookieBusy):
            await world.channel.read(LEDGER, EntryId(0))
        await world.pass_time(10)
        world.bookie.transport.resume_reading()
        await world.bookie.until(lambda: len(world.bookie.heard) >= sent)
        await world.pass_time(10)
        assert len(world.bookie.heard) == sent, "the refused ones were never sent"
        assert sink.lost == []

    on_channel(check, settings=SMALL)


def test_waiting_for_a_lost_connection_to_become_writable_ends() -> None:
    async def check(world: World) -> None:
        world.bookie.transport.pause_reading()
        world.channel.send_adds(LEDGER, [add_frame(0, payload=bytes(200_000))], ids(0), Sink())
        waiter = asyncio.create_task(world.channel.wait_writable())
        await world.pass_time(1)
        world.sim.network.reset_all("bookie")
        with pytest.raises(BookieUnavailable):
            await waiter
        assert not world.channel.is_writable

    on_channel(check, settings=SMALL)
