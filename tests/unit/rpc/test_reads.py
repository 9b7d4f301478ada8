"""Which answer belongs to which read of version 2: in runs, twice, late, and never."""

import asyncio
import itertools

import pytest
from tests.support.scripted_bookie import KEY, LEDGER, World, ids, on_channel

from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.errors import BookieOutcomeUnknown, BookieUnavailable
from quire.rpc.reads import PendingReads, ReadAnswer, ReadRun
from quire.testing import run
from quire.types import EntryId, LedgerId

OTHER = LedgerId(8)


def answer(entry_id: int, body: bytes | None = b"entry", ledger_id: LedgerId = LEDGER) -> ReadAnswer:
    status = Status.ENOENTRY if body is None else Status.EOK
    return status, ledger_id, EntryId(entry_id), None if body is None else memoryview(body)


def read_frame(entry_id: int, body: bytes) -> bytes:
    return v2.read_response_prefix(Status.EOK, LEDGER, EntryId(entry_id), entry_bytes=len(body)) + body


def new_run(*entries: int, ledger_id: LedgerId = LEDGER, deadline_s: float = 5, fences: bool = False) -> ReadRun:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return ReadRun(ledger_id, ids(*entries), future, deadline_s=deadline_s, fences=fences)


def found(run: ReadRun) -> dict[int, bytes | Status]:
    return {entry_id: entry if isinstance(entry, Status) else bytes(entry) for entry_id, entry in run.found.items()}


def test_a_run_is_complete_with_its_last_entry() -> None:
    async def main() -> None:
        reads, mine, other = PendingReads(), new_run(0, 1, 2), new_run(0, ledger_id=OTHER)
        reads.push(mine)
        reads.push(other)
        assert reads.on_answers([answer(2), answer(5), answer(0, None), answer(0, b"other", OTHER)]) == [other]
        assert found(mine) == {2: b"entry", 0: Status.ENOENTRY}
        assert reads.on_answers([answer(1), answer(1)]) == [mine]
        assert not reads
        assert reads.abandoned == 0

    run(main(), seed=0)


def test_two_runs_of_one_entry_get_an_answer_each() -> None:
    async def main() -> None:
        for shared in itertools.permutations((1, 2, 3)):
            reads, first, second, third = PendingReads(), new_run(1, 2, 3), new_run(*shared), new_run(2)
            for each in (first, second, third):
                reads.push(each)
            assert reads.on_answers([answer(entry_id) for entry_id in (1, 2, 3)]) == [first]
            assert reads.on_answers([answer(entry_id, b"again") for entry_id in (3, 2, 1)]) == [second]
            assert reads.on_answers([answer(2, b"third")]) == [third]
            assert found(third) == {2: b"third"}

    run(main(), seed=0)


def test_a_fencing_read_waits_for_an_answer_of_its_own() -> None:
    """FencesAreReal, whatever order they were sent in, and also if the plain one was given up."""

    async def main() -> None:
        for order, given_up in itertools.product(((0, 1), (1, 0)), (False, True)):
            reads, plain, fencing = PendingReads(), new_run(7, 8, deadline_s=1), new_run(7, fences=True)
            for number in order:
                reads.push((plain, fencing)[number])
            assert reads.expire(2 if given_up else 0) == ([plain] if given_up else [])
            assert reads.on_answers([answer(7, b"plain")]) == []
            assert found(fencing) == {}
            assert reads.on_answers([answer(7, b"fenced")]) == [fencing]
            assert found(fencing) == {7: b"fenced"}

    run(main(), seed=0)


def test_what_was_given_up_is_counted_until_its_answer_comes() -> None:
    async def main() -> None:
        reads, late, cancelled = PendingReads(), new_run(1, 2, 3, deadline_s=1), new_run(4)
        reads.push(late)
        reads.push(cancelled)
        reads.on_answers([answer(1)])
        cancelled.future.cancel()
        assert reads.expire(1) == [late]
        assert reads.abandoned == 3
        again = new_run(3)
        reads.push(again)
        assert reads.on_answers([answer(3, b"for whoever waits")]) == [again]
        assert reads.on_answers([answer(2), answer(3), answer(4)]) == []
        assert reads.abandoned == 0
        assert found(late) == {1: b"entry"}

    run(main(), seed=0)


def test_a_run_is_one_write_and_its_answers_come_in_any_order() -> None:
    async def check(world: World) -> None:
        entries = ids(*range(0, 300, 3))
        sent = world.channel.send_reads(LEDGER, entries)
        heard = await world.bookie.hear(100)
        assert heard == [(v2.READ_ENTRY, (0, LEDGER, entry_id, None)) for entry_id in entries]
        order = sorted(entries, key=lambda _: world.sim.rng.random())
        world.bookie.say(*(read_frame(entry_id, b"body %d" % entry_id) for entry_id in order))
        await sent.future
        assert found(sent) == {entry_id: b"body %d" % entry_id for entry_id in entries}

    for seed in range(5):
        on_channel(check, seed=seed)


def test_what_came_before_the_deadline_or_the_end_is_kept() -> None:
    async def check(world: World) -> None:
        for closes in (False, True):
            sent = world.channel.send_reads(LEDGER, ids(0, 1, 2), timeout_s=1)
            await world.bookie.until(lambda: len(world.bookie.heard) % 3 == 0)
            refusal = v2.read_response_prefix(Status.EIO, LEDGER, EntryId(0))
            world.bookie.say(read_frame(2, b"two"), refusal)
            await world.pass_time(0.2)
            if closes:
                world.bookie.transport.abort()
            with pytest.raises(BookieUnavailable) as raised:
                await sent.future
            assert raised.value.facts.get("timed_out", False) is not closes
            assert found(sent) == {2: b"two", 0: Status.EIO}

    on_channel(check)


def test_a_lost_fence_may_have_happened() -> None:
    async def check(world: World) -> None:
        with pytest.raises(BookieOutcomeUnknown):
            await world.channel.read(LEDGER, EntryId(0), master_key=KEY, timeout_s=1)

    on_channel(check)
