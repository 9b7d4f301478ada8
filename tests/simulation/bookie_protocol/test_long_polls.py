"""Long polls: what wakes them, what they answer, and that none is left behind."""

import asyncio

import pytest

from quire.bookie.settings import ServerSettings
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import ReadFlag, ReadRequest, ReadResponse, Response
from quire.types import EntryId, LedgerId
from tests.support.raw_bookie_client import (
    KEY,
    LAST,
    LEDGER,
    V2,
    V3,
    RawClient,
    World,
    bookie_settings,
    decoded,
    entry,
    leftovers,
    long_poll,
    with_bookie,
    write_lac,
)

OK = Status.EOK
FOREVER_MS = 2**63 - 1


def content(answer: Response) -> ReadResponse:
    assert isinstance(answer.content, ReadResponse)
    return answer.content


async def poll(client: RawClient, previous: int, wait_ms: int | None) -> ReadResponse:
    answer = await client.ask_v3(long_poll(previous, wait_ms))
    assert answer.status is OK
    return content(answer)


async def fill(world: World, count: int) -> None:
    """Entries whose LAC is the entry before: the last one is not confirmed yet."""
    for entry_id in range(count):
        await world.client.add(V2, LEDGER, entry_id)


class Polling:
    """A long poll under way, on a connection of its own."""

    def __init__(self, world: World, client: RawClient, request: ReadRequest) -> None:
        self.client = client
        self.began_s = world.sim.loop.time()
        self._world, self._answer = world, asyncio.ensure_future(client.ask_v3(request))

    @classmethod
    async def begin(cls, world: World, previous: int, wait_ms: int | None = 60_000) -> "Polling":
        """Returns when the bookie has it waiting."""
        before = waiting(world)
        polling = cls(world, await world.connect(), long_poll(previous, wait_ms))
        await world.until(lambda: waiting(world) == before + 1)
        return polling

    async def answer(self) -> tuple[ReadResponse, float]:
        """What it says, and after how many seconds."""
        response = await self._answer
        assert response.status is OK
        return content(response), self._world.sim.loop.time() - self.began_s

    @property
    def is_answered(self) -> bool:
        return self._answer.done()

    def leave(self) -> None:
        self.client.close()
        self._answer.cancel()


def waiting(world: World) -> int:
    in_ledgers = sum(len(ledger.waiters) for ledger in world.storage.table.by_id.values())
    assert in_ledgers == sum(len(connection.waiters) for connection in world.service.connections)
    return in_ledgers


# --- What is answered


def test_news_that_are_here_already_come_at_once_with_their_entry() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        assert await poll(world.client, -1, 60_000) == ReadResponse(LEDGER, EntryId(0), entry(LEDGER, 0), EntryId(1))
        assert await poll(world.client, 0, 60_000) == ReadResponse(LEDGER, EntryId(1), entry(LEDGER, 1), EntryId(1))
        assert world.sim.loop.time() < 1.0

    with_bookie(check)


def test_the_entry_of_another_bookie_cannot_be_attached() -> None:
    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 6)
        assert await poll(world.client, 3, 60_000) == ReadResponse(LEDGER, LAST, None, EntryId(5))

    with_bookie(check)


def test_running_out_of_time_is_no_error() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        began = world.sim.loop.time()
        assert await poll(world.client, 1, 5_000) == ReadResponse(LEDGER, LAST, None, EntryId(1))
        assert 5.0 <= world.sim.loop.time() - began < 5.1
        assert await poll(world.client, 10, 0) == ReadResponse(LEDGER, LAST, None, EntryId(1))
        assert await poll(world.client, 10, -7) == ReadResponse(LEDGER, LAST, None, EntryId(1))

    with_bookie(check)


def test_without_a_timeout_there_is_no_wait() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        began = world.sim.loop.time()
        assert await poll(world.client, 1, None) == ReadResponse(LEDGER, LAST, None, EntryId(1))
        assert await poll(world.client, 0, None) == ReadResponse(LEDGER, EntryId(1), entry(LEDGER, 1), EntryId(1))
        assert world.sim.loop.time() - began < 1.0

    with_bookie(check)


@pytest.mark.parametrize("wait_ms", [None, 60_000])
def test_an_unknown_ledger_is_not_waited_for(wait_ms: int | None) -> None:
    async def check(world: World) -> None:
        answer = await world.client.ask_v3(long_poll(-1, wait_ms))
        assert (answer.status, answer.content) == (Status.ENOLEDGER, ReadResponse(LEDGER, LAST))
        assert world.sim.loop.time() < 1.0

    with_bookie(check)


def test_a_ledger_without_anything_has_no_entry() -> None:
    """It is here, since it was fenced. Nothing is known of its LAC."""

    async def check(world: World) -> None:
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        answer = await world.client.ask_v3(long_poll(-1, 100))
        assert (answer.status, answer.content) == (Status.ENOENTRY, ReadResponse(LEDGER, LAST))

    with_bookie(check)


def test_a_piggyback_asks_for_no_entry_of_its_own() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        request = ReadRequest(LEDGER, EntryId(2), None, LAST, 60_000, ReadFlag.ENTRY_PIGGYBACK)
        answer = await world.client.ask_v3(request)
        assert (answer.status, answer.content) == (Status.EBADREQ, ReadResponse(LEDGER, EntryId(2)))

    with_bookie(check)


@pytest.mark.parametrize("previous", [-1, 1])
def test_without_the_piggyback_flag_it_ends_in_an_ordinary_read(previous: int) -> None:
    """At once where there are news, else after the wait."""

    async def check(world: World) -> None:
        await fill(world, 3)
        began = world.sim.loop.time()
        for asked, found in [(2, 2), (-1, 2), (0, 0)]:
            request = ReadRequest(LEDGER, EntryId(asked), None, EntryId(previous), 1_000)
            answer = await world.client.ask_v3(request)
            assert (answer.status, answer.content) == (
                OK,
                ReadResponse(LEDGER, EntryId(asked), entry(LEDGER, found), EntryId(1)),
            )
        missing = await world.client.ask_v3(ReadRequest(LEDGER, EntryId(9), None, EntryId(previous), 1_000))
        assert missing.status is Status.ENOENTRY
        assert content(missing).body is None
        assert (world.sim.loop.time() - began >= 4.0) == (previous == 1)

    with_bookie(check)


@pytest.mark.parametrize("previous", [-2, -5, -(2**63)])
def test_a_previous_lac_below_all_entries_is_behind_any_lac(previous: int) -> None:
    """The entry after -2 is none: above all it is not "the last one", which is what -1 asks for in a read."""

    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 0)
        await world.client.add(V2, LEDGER, 1, entry(LEDGER, 1, lac=-1))
        assert await poll(world.client, previous, 60_000) == ReadResponse(LEDGER, LAST, None, LAST)

    with_bookie(check)


# --- What wakes


def test_an_add_that_carries_a_higher_lac_wakes() -> None:
    """With the entry that it confirms, and the time at which it did. Adds that carry no news wake nobody."""

    async def check(world: World) -> None:
        await fill(world, 3)
        polling = await Polling.begin(world, 1)
        await world.client.add(V2, LEDGER, 3, entry(LEDGER, 3, lac=1))
        await world.client.add(V2, LEDGER, 4, entry(LEDGER, 4, lac=-1))
        await world.pass_time(1.0)
        assert not polling.is_answered
        await world.client.add(V2, LEDGER, 5, entry(LEDGER, 5, lac=2))
        answer, seconds = await polling.answer()
        assert (answer.entry_id, answer.body, answer.max_lac) == (2, entry(LEDGER, 2), 2)
        assert answer.lac_updated_ms is not None
        assert 1.0 < seconds < 2.0

    with_bookie(check)


def test_an_explicit_lac_wakes() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        polling = await Polling.begin(world, 1)
        await world.client.ask_v3(write_lac(1))
        await world.pass_time(1.0)
        assert not polling.is_answered
        await world.client.ask_v3(write_lac(2))
        answer, seconds = await polling.answer()
        assert (answer.entry_id, answer.body, answer.max_lac) == (2, entry(LEDGER, 2), 2)
        assert seconds < 2.0

    with_bookie(check)


def test_a_fence_wakes_with_what_is_known() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        polling = await Polling.begin(world, 1)
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        answer, seconds = await polling.answer()
        assert answer == ReadResponse(LEDGER, LAST, None, EntryId(1))
        assert seconds < 1.0

    with_bookie(check)


def test_the_deletion_of_the_ledger_wakes() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        client = await world.connect()
        asked = asyncio.ensure_future(client.ask_v3(long_poll(1, 60_000)))
        await world.until(lambda: waiting(world) == 1)
        await world.storage.delete([LEDGER], tombstones_until_ms=0)
        answer = await asked
        assert (answer.status, answer.content) == (Status.ENOLEDGER, ReadResponse(LEDGER, LAST))
        assert world.sim.loop.time() < 2.0

    with_bookie(check)


def test_a_lac_that_moves_but_stays_below_wakes_nobody_for_good() -> None:
    """A Java bookie drops the waiter then, and only the timer answers. Here it is armed still."""

    async def check(world: World) -> None:
        await fill(world, 3)
        polling = await Polling.begin(world, 5)
        for lac in (2, 3, 4, 5):
            await world.client.ask_v3(write_lac(lac))
        assert not polling.is_answered
        await world.client.ask_v3(write_lac(6))
        answer, seconds = await polling.answer()
        assert (answer.entry_id, answer.max_lac) == (-1, 6)
        assert seconds < 2.0

    with_bookie(check)


def test_of_several_waiters_those_are_woken_that_have_news() -> None:
    async def check(world: World) -> None:
        await fill(world, 10)
        pollings = {previous: await Polling.begin(world, previous) for previous in (8, 9, 10, 20)}
        other = await Polling.begin(world, 9, 3_000)
        await world.client.ask_v3(write_lac(10))
        for previous in (8, 9):
            answer, seconds = await pollings[previous].answer()
            has_next = previous + 1 < 10
            assert answer.entry_id == (previous + 1 if has_next else -1)
            assert answer.max_lac == 10
            assert seconds < 1.0
        assert (await other.answer())[1] < 1.0
        assert not pollings[10].is_answered
        assert not pollings[20].is_answered
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        for previous in (10, 20):
            assert (await pollings[previous].answer())[0] == ReadResponse(LEDGER, LAST, None, EntryId(10))
        assert waiting(world) == 0

    with_bookie(check)


def test_one_connection_may_wait_for_many_ledgers_and_work_meanwhile() -> None:
    async def check(world: World) -> None:
        for ledger_id in range(20):
            await world.client.add(V2, ledger_id, 0)
        world.client.send(*(V3.frame(long_poll(-1, 60_000, ledger_id=LedgerId(each))) for each in range(20)))
        await world.until(lambda: waiting(world) == 20)
        assert (await world.client.read(V2, 3, 0)).body == entry(3, 0)
        await (await world.connect()).add(V2, 5, 1)
        answer = content(decoded(await world.client.frame()))
        assert (answer.ledger_id, answer.entry_id, answer.body) == (5, 0, entry(5, 0))
        assert waiting(world) == 19

    with_bookie(check)


# --- After a restart


def test_the_lac_is_looked_up_after_a_restart() -> None:
    """What the last entry carries is news, though no writer has said a word since."""

    async def check(world: World) -> None:
        await fill(world, 5)
        await world.restart()
        assert world.storage.known_lac(LEDGER) is None
        assert await poll(world.client, 2, 60_000) == ReadResponse(LEDGER, EntryId(3), entry(LEDGER, 3), EntryId(3))
        await world.restart()
        began = world.sim.loop.time()
        assert await poll(world.client, 3, 1_000) == ReadResponse(LEDGER, LAST, None, EntryId(3))
        assert world.sim.loop.time() - began >= 1.0
        await world.client.ask_v3(write_lac(4))
        await world.restart()
        assert await poll(world.client, 3, 60_000) == ReadResponse(LEDGER, EntryId(4), entry(LEDGER, 4), EntryId(4))

    with_bookie(check)


# --- What is left behind: nothing


def test_a_client_that_leaves_takes_its_long_polls_along() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        staying = await Polling.begin(world, 1)
        leaving = [await Polling.begin(world, 1, FOREVER_MS) for _ in range(3)]
        for polling in leaving:
            polling.leave()
        await world.until(lambda: waiting(world) == 1)
        await world.client.ask_v3(write_lac(2))
        assert (await staying.answer())[0].max_lac == 2

    with_bookie(check)


def test_a_client_that_leaves_while_the_lac_is_looked_up_leaves_no_waiter() -> None:
    """Method: after a restart the LAC is read from a slow disk, and the connection is gone before it is known."""

    async def check(world: World) -> None:
        await fill(world, 3)
        await world.restart()
        world.bookie.host.disk.faults.latency_by_operation_s["read"] = (5.0, 5.0)
        client = await world.connect()
        client.send(V3.frame(long_poll(1, FOREVER_MS)))
        await world.until(lambda: bool(world.service._tasks))
        client.close()
        world.client.close()
        await world.until(lambda: not world.service.connections)
        await world.until(lambda: not world.service._tasks)
        assert leftovers(world.service) == {}

    with_bookie(check)


def test_the_number_of_long_polls_is_bounded() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        for _ in range(4):
            world.client.send(V3.frame(long_poll(1, 60_000)))
        await world.until(lambda: waiting(world) == 4)
        answer = await world.client.ask_v3(long_poll(1, 60_000))
        assert (answer.status, answer.content) == (Status.ETOOMANYREQUESTS, ReadResponse(LEDGER, LAST))
        other = await Polling.begin(world, 1)  # Another client has room of its own.
        assert (await poll(world.client, 0, 60_000)).entry_id == 1  # News at once take none.
        other.leave()

    with_bookie(check, settings=bookie_settings(server=ServerSettings(long_polls_max=4)))


def test_the_number_of_long_polls_is_bounded_also_while_lacs_are_looked_up() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        await world.restart()
        world.client.send(*(V3.frame(long_poll(1, 60_000)) for _ in range(10)))
        refused = [decoded(await world.client.frame()).status for _ in range(6)]
        assert set(refused) == {Status.ETOOMANYREQUESTS}
        assert waiting(world) == 4

    with_bookie(check, settings=bookie_settings(server=ServerSettings(long_polls_max=4)))


def test_a_bookie_stops_while_clients_wait() -> None:
    async def check(world: World) -> None:
        await fill(world, 3)
        polling = await Polling.begin(world, 1, FOREVER_MS)
        world.client.send(V3.frame(long_poll(1, FOREVER_MS)))
        await world.until(lambda: waiting(world) == 2)
        polling.leave()
        began = world.sim.loop.time()
        await world.restart()
        assert world.sim.loop.time() - began < 10.0
        assert await poll(world.client, 0, 10) == ReadResponse(LEDGER, EntryId(1), entry(LEDGER, 1), EntryId(1))

    with_bookie(check)
