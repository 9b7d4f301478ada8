"""Reads and fencing reads: what is here, what certainly is not, and what nobody can say."""

import asyncio

import pytest

from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import ListEntriesRequest, ReadFlag, ReadLacRequest, ReadRequest, ReadResponse
from quire.errors import DamagedIndex
from quire.types import EntryId
from tests.support.raw_bookie_client import (
    KEY,
    LAST,
    LEDGER,
    V2,
    V3,
    WRONG_KEY,
    Answer,
    Version,
    World,
    decoded,
    entry,
    long_poll,
    with_bookie,
    write_lac,
)

OK = Status.EOK


def test_what_is_not_here(version: Version) -> None:
    async def check(world: World) -> None:
        assert await world.client.read(version, LEDGER, 0) == Answer(Status.ENOLEDGER, LEDGER, 0)
        assert await world.client.read(version, LEDGER, -1) == Answer(Status.ENOLEDGER, LEDGER, -1)
        await world.client.add(version, LEDGER, 3)
        assert await world.client.read(version, LEDGER, 2) == Answer(Status.ENOENTRY, LEDGER, 2)
        assert await world.client.read(version, LEDGER, 4) == Answer(Status.ENOENTRY, LEDGER, 4)
        assert await world.client.read(version, LEDGER, 2**63 - 1) == Answer(Status.ENOENTRY, LEDGER, 2**63 - 1)

    with_bookie(check)


@pytest.mark.parametrize(
    ("ledger_id", "entry_id"), [(LEDGER, -2), (LEDGER, -(2**63)), (-1, 0), (-1, -1), (-(2**63), 7)]
)
def test_reads_of_what_cannot_be_are_refused(version: Version, ledger_id: int, entry_id: int) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        answer = await world.client.read(version, ledger_id, entry_id)
        assert answer == Answer(Status.EBADREQ, ledger_id, entry_id)

    with_bookie(check)


@pytest.mark.parametrize("restarted", [False, True])
def test_entry_minus_one_is_the_highest(version: Version, restarted: bool) -> None:
    """It is asked for and answered as -1: clients match answers by that."""

    async def check(world: World) -> None:
        for entry_id in (4, 9, 7):
            await world.client.add(version, LEDGER, entry_id)
        if restarted:
            await world.restart()
        assert await world.client.read(version, LEDGER, -1) == Answer(OK, LEDGER, -1, entry(LEDGER, 9))

    with_bookie(check)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_read_of_version_3_tells_the_highest_lac(restarted: bool) -> None:
    """Not the last entry, not the last LAC. A fencing read says nothing of it."""

    async def check(world: World) -> None:
        for entry_id, lac in [(0, -1), (5, 3), (6, 2)]:
            await world.client.add(V3, LEDGER, entry_id, entry(LEDGER, entry_id, lac=lac))
        if restarted:
            await world.restart()
        lacs = [await max_lac(world, V3.read(LEDGER, entry_id)) for entry_id in (0, 5, 6, -1)]
        if restarted:  # After the index has forgotten the LACs, the last entry's is what is known.
            assert set(lacs) <= {2, 3}
        else:
            assert lacs == [3, 3, 3, 3]
        assert await max_lac(world, V3.read(LEDGER, 0, fence=KEY)) is None
        await world.client.ask_v3(write_lac(40))
        assert await max_lac(world, V3.read(LEDGER, 0)) == 40
        await world.client.ask_v3(write_lac(30))
        assert await max_lac(world, V3.read(LEDGER, 0)) == 40

    async def max_lac(world: World, request: bytes) -> int | None:
        content = decoded(await world.client.ask(request)).content
        assert isinstance(content, ReadResponse)
        return content.max_lac

    with_bookie(check)


def test_an_error_of_version_3_has_no_lac_and_no_body() -> None:
    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 4)
        answer = decoded(await world.client.ask(V3.read(LEDGER, 9)))
        assert (answer.status, answer.content) == (Status.ENOENTRY, ReadResponse(LEDGER, EntryId(9)))

    with_bookie(check)


def test_a_piggyback_without_a_previous_lac_is_an_ordinary_read() -> None:
    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 4)
        answer = await world.client.ask_v3(ReadRequest(LEDGER, EntryId(4), flag=ReadFlag.ENTRY_PIGGYBACK))
        assert answer.content == ReadResponse(LEDGER, EntryId(4), entry(LEDGER, 4), EntryId(3))

    with_bookie(check)


# --- Trouble


def test_a_disk_that_does_not_read_is_no_absence(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        faults = world.bookie.host.disk.faults
        faults.fail_next("read", times=1000)
        assert await world.client.read(version, LEDGER, 0) == Answer(Status.EIO, LEDGER, 0)
        faults.repair()
        assert (await world.client.read(version, LEDGER, 0)).body == entry(LEDGER, 0)

    with_bookie(check)


def test_a_damaged_entry_is_no_absence(version: Version) -> None:
    """Version 2 has no code for it that a Java client knows."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        disk = world.bookie.host.disk
        (log,) = [name for name in await disk.listdir("/data/entries") if name.endswith(".log")]
        data = disk._content(f"/data/entries/{log}").visible[:]
        disk.flip_bit(f"/data/entries/{log}", bytes(data).index(b"payload"))
        expected = Status.EIO if version.number == 2 else Status.EUNKNOWNLEDGERSTATE
        assert await world.client.read(version, LEDGER, 0) == Answer(expected, LEDGER, 0)

    with_bookie(check)


BROKEN = [OSError(5, "simulated"), DamagedIndex("simulated")]


@pytest.mark.parametrize("error", BROKEN, ids=["io", "damage"])
@pytest.mark.parametrize("entry_id", [0, -1])
@pytest.mark.parametrize("known", [False, True])
def test_an_index_that_does_not_read_is_no_absence(
    version: Version, error: OSError | DamagedIndex, entry_id: int, known: bool
) -> None:
    """The client gets an answer, keeps its connection, and is served when all is well again."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        if known:
            await world.client.read(version, LEDGER, 9)  # The ledger is in memory now, its entry is not.
        world.bookie.index.faults.fail_next("read", error, times=1000)
        answer = await world.client.read(version, LEDGER, entry_id)
        damaged = Status.EIO if version.number == 2 else Status.EUNKNOWNLEDGERSTATE
        assert answer == Answer(Status.EIO if isinstance(error, OSError) else damaged, LEDGER, entry_id)
        world.bookie.index.faults.repair()
        assert (await world.client.read(version, LEDGER, entry_id)).body == entry(LEDGER, 0)

    with_bookie(check)


@pytest.mark.parametrize("error", BROKEN, ids=["io", "damage"])
@pytest.mark.parametrize("what", ["add", "fence", "write LAC", "read LAC", "long poll", "list"])
def test_an_index_that_does_not_read_costs_one_request(
    version: Version, error: OSError | DamagedIndex, what: str
) -> None:
    """Nothing is stored without knowing the ledger's key and fence; the connection stays."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.restart()
        client = world.client
        world.bookie.index.faults.fail_next("read", error, times=1000)
        match what:
            case "add":
                status = (await client.add(version, LEDGER, 1)).status
            case "fence":
                status = (await client.read(version, LEDGER, -1, fence=KEY)).status
            case "write LAC":
                status = (await client.ask_v3(write_lac(5))).status
            case "read LAC":
                status = (await client.ask_v3(ReadLacRequest(LEDGER))).status
            case "long poll":
                status = (await client.ask_v3(long_poll(9, 100))).status
            case _:
                status = (await client.ask_v3(ListEntriesRequest(LEDGER))).status
        assert status in (Status.EIO, Status.EUNKNOWNLEDGERSTATE)
        world.bookie.index.faults.repair()
        assert (await client.read(version, LEDGER, 0)).body == entry(LEDGER, 0)
        assert (await client.add(version, LEDGER, 1)).status is OK

    with_bookie(check)


# --- Fencing


def test_a_fence_is_answered_with_the_entry_asked_for(version: Version) -> None:
    async def check(world: World) -> None:
        for entry_id in range(3):
            await world.client.add(version, LEDGER, entry_id)
        assert await world.client.read(version, LEDGER, -1, fence=KEY) == Answer(OK, LEDGER, -1, entry(LEDGER, 2))
        assert await world.client.read(version, LEDGER, 1, fence=KEY) == Answer(OK, LEDGER, 1, entry(LEDGER, 1))
        assert await world.client.read(version, LEDGER, 7, fence=KEY) == Answer(Status.ENOENTRY, LEDGER, 7)
        assert (await world.client.add(version, LEDGER, 3)).status is Status.EFENCED

    with_bookie(check)


def test_a_fence_holds_also_where_the_read_fails(version: Version) -> None:
    """The negative answer comes only once the fence is durable; a crash right after it undoes nothing."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        world.slow_syncs(3.0)
        began = world.sim.loop.time()
        assert (await world.client.read(version, LEDGER, 5, fence=KEY)).status is Status.ENOENTRY
        assert world.sim.loop.time() - began >= 3.0
        world.slow_syncs(0.001)
        await world.restart(crash=True)
        assert (await world.client.add(version, LEDGER, 1)).status is Status.EFENCED

    with_bookie(check)


def test_a_second_fence_waits_for_the_first_to_be_durable(version: Version) -> None:
    """Method: both arrive within one flush of the journal; the second adds no record of its own."""

    async def check(world: World) -> None:
        other = await world.connect()
        await world.client.add(version, LEDGER, 0)
        world.slow_syncs(3.0)
        began = world.sim.loop.time()
        asked = [client.read(version, LEDGER, -1, fence=KEY) for client in (world.client, other)]
        for answer in await asyncio.gather(*asked):
            assert answer.body == entry(LEDGER, 0)
        assert world.sim.loop.time() - began >= 3.0

    with_bookie(check)


def test_adds_are_refused_before_the_fence_is_durable(version: Version) -> None:
    async def check(world: World) -> None:
        world.slow_syncs(3.0)
        other = await world.connect()
        fencing = asyncio.ensure_future(world.client.read(version, LEDGER, -1, fence=KEY))
        await world.until(lambda: world.storage.is_fenced(LEDGER))
        began = world.sim.loop.time()
        assert (await other.add(version, LEDGER, 0)).status is Status.EFENCED
        assert world.sim.loop.time() - began < 1.0
        assert (await fencing).status is Status.ENOENTRY

    with_bookie(check)


@pytest.mark.parametrize("crash", [False, True])
def test_a_fence_outlives_the_bookie(version: Version, crash: bool) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.client.read(version, LEDGER, -1, fence=KEY)
        await world.restart(crash=crash)
        assert (await world.client.add(version, LEDGER, 1)).status is Status.EFENCED
        assert (await world.client.add(version, LEDGER, 1, recovery=True)).status is OK
        assert (await world.client.read(version, LEDGER, -1, fence=KEY)).body == entry(LEDGER, 1)

    with_bookie(check)


@pytest.mark.parametrize("crash", [False, True])
def test_fencing_an_unknown_ledger_makes_it(version: Version, crash: bool) -> None:
    """Whoever wrote to it, and did not get here yet, comes too late."""

    async def check(world: World) -> None:
        assert await world.client.read(version, LEDGER, -1, fence=KEY) == Answer(Status.ENOENTRY, LEDGER, -1)
        assert (await world.client.read(version, LEDGER, 0)).status is Status.ENOENTRY
        assert (await world.client.read(version, LEDGER, 0, fence=WRONG_KEY)).status is Status.EUA
        await world.restart(crash=crash)
        assert (await world.client.add(version, LEDGER, 0)).status is Status.EFENCED
        assert (await world.client.add(version, LEDGER, 0, key=WRONG_KEY)).status is Status.EUA

    with_bookie(check)


def test_a_fence_needs_the_key(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        assert await world.client.read(version, LEDGER, 0, fence=WRONG_KEY) == Answer(Status.EUA, LEDGER, 0)
        assert (await world.client.add(version, LEDGER, 1)).status is OK

    with_bookie(check)


def test_a_fence_without_any_key_is_refused_and_makes_no_ledger() -> None:
    async def check(world: World) -> None:
        for ledger_id in (LEDGER, LEDGER):
            answer = await world.client.ask_v3(ReadRequest(ledger_id, LAST, flag=ReadFlag.FENCE_LEDGER))
            assert (answer.status, answer.content) == (Status.EUA, ReadResponse(LEDGER, LAST))
        assert (await world.client.read(V3, LEDGER, 0)).status is Status.ENOLEDGER

    with_bookie(check)


@pytest.mark.parametrize("ledger_id", [-1, -(2**63)])
def test_there_is_no_negative_ledger_to_fence(version: Version, ledger_id: int) -> None:
    async def check(world: World) -> None:
        answer = await world.client.read(version, ledger_id, -1, fence=KEY)
        assert answer == Answer(Status.EBADREQ, ledger_id, -1)

    with_bookie(check)


def test_a_fence_with_a_previous_lac_is_a_fence() -> None:
    """It does not wait for news, and says nothing of the LAC."""

    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        request = ReadRequest(LEDGER, LAST, KEY, EntryId(5), 60_000, ReadFlag.FENCE_LEDGER)
        began = world.sim.loop.time()
        answer = await world.client.ask_v3(request)
        assert answer.content == ReadResponse(LEDGER, LAST, entry(LEDGER, 0))
        assert world.sim.loop.time() - began < 1.0
        assert (await world.client.add(V3, LEDGER, 1)).status is Status.EFENCED

    with_bookie(check)


def test_a_fence_that_cannot_be_journaled_is_not_answered(version: Version) -> None:
    """The journal's failure ends the bookie: no answer could be trusted."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        world.bookie.host.disk.faults.fail_next("sync")
        world.client.send(version.read(LEDGER, -1, fence=KEY))
        await world.client.closed()
        await world.until(lambda: not world.bookie.is_running)
        assert world.bookie.failure is not None
        await world.bookie.start()
        world.client = await world.connect()

    with_bookie(check)


def test_reads_without_a_fence_never_wait_for_the_journal(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        world.slow_syncs(5.0)
        world.client.send(version.add(LEDGER, 1))
        assert (await world.client.read(version, LEDGER, 0)).body == entry(LEDGER, 0)
        assert version.answer(await world.client.frame()) == Answer(OK, LEDGER, 1)

    with_bookie(check)


def test_a_flood_of_reads_of_one_ledger_is_answered_in_full() -> None:
    async def check(world: World) -> None:
        for entry_id in range(200):
            world.client.send(V2.add(LEDGER, entry_id))
        for _ in range(200):
            await world.client.frame()
        await world.restart()
        order = [(number * 7919) % 250 for number in range(1000)]
        world.client.send(*(V2.read(LEDGER, entry_id) for entry_id in order))
        answers = [V2.answer(await world.client.frame()) for _ in order]
        assert sorted(answer.entry_id for answer in answers) == sorted(order)
        for answer in answers:
            here = answer.entry_id < 200
            assert answer.body == (entry(LEDGER, answer.entry_id) if here else None)
            assert answer.status is (OK if here else Status.ENOENTRY)

    with_bookie(check)
