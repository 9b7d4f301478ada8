"""Calls through a channel: what is asked, what comes back, and how they fail."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import pytest
from tests.support.scripted_bookie import KEY, LEDGER, Sink, World, add_ok, ids, on_channel

from quire.codec.wire import v2, v3
from quire.codec.wire.availability import EntryAvailability, encode_availability
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import (
    HIGH_PRIORITY,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadFlag,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestContent,
    ResponseContent,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.errors import (
    BookieOutcomeUnknown,
    BookieUnavailable,
    InvalidArgument,
    NoSuchEntry,
    ProtocolViolation,
    QuireError,
    WrongPassword,
)
from quire.rpc import BookieChannel
from quire.rpc.errors import ERRORS
from quire.testing import SimDeadlock
from quire.types import NO_ENTRY, EntryId

OK = Status.EOK
E3 = EntryId(3)
AVAILABLE = EntryAvailability.of(ids(0, 1, 2, 5))


def read_answer(entry_id: int, entry: bytes | None, status: Status = OK) -> bytes:
    prefix = v2.read_response_prefix(status, LEDGER, EntryId(entry_id), entry_bytes=len(entry or b""))
    return prefix + (entry or b"")


# --- Version 3: each operation, what the bookie hears, what it says, what the caller gets

Ask: TypeAlias = Callable[[BookieChannel], Awaitable[Any]]
OPERATIONS: dict[str, tuple[Ask, RequestContent, ResponseContent, Any]] = {
    "read": (
        lambda channel: channel.read(LEDGER, E3, version=3),
        ReadRequest(LEDGER, E3),
        ReadResponse(LEDGER, E3, b"entry", max_lac=EntryId(2)),
        ReadResponse(LEDGER, E3, b"entry", max_lac=EntryId(2)),
    ),
    "fencing read": (
        lambda channel: channel.read(LEDGER, NO_ENTRY, version=3, master_key=KEY),
        ReadRequest(LEDGER, NO_ENTRY, KEY, flag=ReadFlag.FENCE_LEDGER),
        ReadResponse(LEDGER, NO_ENTRY, b"entry"),
        ReadResponse(LEDGER, NO_ENTRY, b"entry"),
    ),
    "long poll": (
        lambda channel: channel.long_poll(LEDGER, E3, 2000),
        ReadRequest(LEDGER, NO_ENTRY, None, E3, 2000, ReadFlag.ENTRY_PIGGYBACK),
        ReadResponse(LEDGER, EntryId(4), b"entry", EntryId(4), 1234),
        ReadResponse(LEDGER, EntryId(4), b"entry", EntryId(4), 1234),
    ),
    "long poll without entry": (
        lambda channel: channel.long_poll(LEDGER, E3, 2000, piggyback=False),
        ReadRequest(LEDGER, NO_ENTRY, None, E3, 2000),
        ReadResponse(LEDGER, NO_ENTRY, b"last", EntryId(4)),
        ReadResponse(LEDGER, NO_ENTRY, b"last", EntryId(4)),
    ),
    "read lac": (
        lambda channel: channel.read_lac(LEDGER),
        ReadLacRequest(LEDGER),
        ReadLacResponse(LEDGER, b"lac", b"last"),
        ReadLacResponse(LEDGER, b"lac", b"last"),
    ),
    "write lac": (
        lambda channel: channel.write_lac(LEDGER, E3, KEY, b"packet"),
        WriteLacRequest(LEDGER, E3, KEY, b"packet"),
        WriteLacResponse(LEDGER),
        None,
    ),
    "force": (
        lambda channel: channel.force(LEDGER),
        ForceLedgerRequest(LEDGER),
        ForceLedgerResponse(LEDGER),
        None,
    ),
    "bookie info": (
        lambda channel: channel.bookie_info(),
        BookieInfoRequest(),
        BookieInfoResponse(100, 60),
        BookieInfoResponse(100, 60),
    ),
    "list entries": (
        lambda channel: channel.list_entries(LEDGER),
        ListEntriesRequest(LEDGER),
        ListEntriesResponse(LEDGER, encode_availability(AVAILABLE)),
        AVAILABLE,
    ),
    "auth": (
        lambda channel: channel.auth(AuthMessage("sasl", b"hello")),
        AuthMessage("sasl", b"hello"),
        AuthMessage("sasl", b"welcome"),
        AuthMessage("sasl", b"welcome"),
    ),
}
CHANGING = {"fencing read", "write lac", "force", "auth"}


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_asks_and_returns(name: str) -> None:
    ask, request, response, result = OPERATIONS[name]

    async def check(world: World) -> None:
        call = asyncio.ensure_future(ask(world.channel))
        heard = await world.bookie.hear_v3()
        assert heard.content == request
        assert heard.priority == 0
        world.bookie.say(v3.encode_response(heard.txn_id, OK, response))
        assert await call == result

    on_channel(check)


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("with_content", [True, False])
def test_each_operation_fails_with_the_error_of_the_status(name: str, with_content: bool) -> None:
    ask, _, response, _ = OPERATIONS[name]

    async def check(world: World) -> None:
        for status, error_type in ERRORS.items():
            call = asyncio.ensure_future(ask(world.channel))
            heard = await world.bookie.hear_v3()
            world.bookie.say(
                v3.encode_response(heard.txn_id, status, response)
                if with_content
                else v3.encode_refusal(heard.txn_id, heard.operation, status)
            )
            with pytest.raises(QuireError) as raised:
                await call
            assert type(raised.value) is error_type
            assert raised.value.facts["bookie"] == "bookie:3181"
            assert raised.value.facts["status"] == status.name
        assert not world.channel.closed

    on_channel(check)


@pytest.mark.parametrize("name", OPERATIONS)
def test_what_could_change_something_says_that_it_may_have_happened(name: str) -> None:
    """Method: first the deadline passes without an answer, then the connection breaks."""
    ask = OPERATIONS[name][0]
    expected = BookieOutcomeUnknown if name in CHANGING else BookieUnavailable

    async def check(world: World) -> None:
        began = world.sim.loop.time()
        with pytest.raises(QuireError, match="in time") as raised:
            await ask(world.channel)
        assert type(raised.value) is expected
        patience_s = 7.0 if name.startswith("long poll") else 5.0
        assert patience_s <= world.sim.loop.time() - began <= patience_s + 0.2
        call = asyncio.ensure_future(ask(world.channel))
        await world.bookie.hear(2)
        world.sim.network.reset_all("bookie")
        with pytest.raises(QuireError, match="broke") as raised:
            await call
        assert type(raised.value) is expected
        with pytest.raises(BookieUnavailable, match="broke"):
            await ask(world.channel)

    on_channel(check)


def test_answers_find_their_calls_by_transaction_and_operation() -> None:
    """Method: several calls at once, answered backwards, with answers of other operations under their numbers."""

    async def check(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(world.channel.read(LEDGER, entry_id, version=3)) for entry_id in ids(0, 1, 2)]
            heard = [request for request in await world.bookie.hear(3) if isinstance(request, Request)]
            for request in reversed(heard):
                assert isinstance(request.content, ReadRequest)
                entry_id = request.content.entry_id
                world.bookie.say(
                    v3.encode_response(request.txn_id, OK, ForceLedgerResponse(LEDGER)),
                    v3.encode_response(request.txn_id + 100, OK, ReadResponse(LEDGER, entry_id, b"wrong")),
                    v3.encode_response(request.txn_id, OK, ReadResponse(LEDGER, entry_id, b"%d" % entry_id)),
                    v3.encode_response(request.txn_id, OK, ReadResponse(LEDGER, entry_id, b"again")),
                )
        assert [read.result().body for read in reads] == [b"0", b"1", b"2"]

    on_channel(check)


def test_a_recovery_read_has_priority() -> None:
    async def check(world: World) -> None:
        call = asyncio.ensure_future(world.channel.read(LEDGER, E3, version=3, master_key=KEY, high_priority=True))
        heard = await world.bookie.hear_v3()
        assert heard.priority == HIGH_PRIORITY
        world.bookie.say(v3.encode_response(heard.txn_id, Status.ENOENTRY, ReadResponse(LEDGER, E3)))
        with pytest.raises(NoSuchEntry):
            await call

    on_channel(check)


def test_a_call_may_have_a_deadline_of_its_own_however_others_wait() -> None:
    async def check(world: World) -> None:
        patient = asyncio.ensure_future(world.channel.read_lac(LEDGER, timeout_s=20))
        first = await world.bookie.hear_v3()
        began = world.sim.loop.time()
        with pytest.raises(BookieUnavailable):
            await world.channel.read_lac(LEDGER, timeout_s=1)
        assert 1.0 <= world.sim.loop.time() - began <= 1.2
        world.bookie.say(v3.encode_response(first.txn_id, OK, ReadLacResponse(LEDGER, b"lac", b"last")))
        assert (await patient).lac_body == b"lac"

    on_channel(check)


def test_a_list_of_entries_that_makes_no_sense_is_the_callers_to_see() -> None:
    async def check(world: World) -> None:
        call = asyncio.ensure_future(world.channel.list_entries(LEDGER))
        heard = await world.bookie.hear_v3()
        world.bookie.say(v3.encode_response(heard.txn_id, OK, ListEntriesResponse(LEDGER, b"nonsense")))
        with pytest.raises(ProtocolViolation):
            await call
        assert not world.channel.closed, "its frame was whole; the next ones can be found"

    on_channel(check)


def test_a_cancelled_call_leaves_the_channel_as_it_was() -> None:
    async def check(world: World) -> None:
        calls = [
            asyncio.ensure_future(world.channel.read_lac(LEDGER)),
            asyncio.ensure_future(world.channel.read(LEDGER, E3)),
        ]
        await world.bookie.hear(2)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
        lac = v3.encode_response(1, OK, ReadLacResponse(LEDGER, b"lac"))
        world.bookie.say(lac, read_answer(3, b"entry"), lac)
        again = asyncio.ensure_future(world.channel.read(LEDGER, EntryId(4)))
        await world.bookie.hear(3)
        world.bookie.say(read_answer(4, b"next"))
        assert (await again).body == b"next"

    on_channel(check)


def test_a_cancelled_call_is_forgotten_long_before_its_deadline() -> None:
    """Method: without timers a simulation in which all wait is a deadlock, and time stands still."""
    times: list[float] = []

    async def check(world: World) -> None:
        call = asyncio.ensure_future(world.channel.long_poll(LEDGER, E3, 1_000_000))
        await world.bookie.hear(1)
        call.cancel()
        try:
            await asyncio.Event().wait()
        finally:
            times.append(world.sim.loop.time())

    with pytest.raises(SimDeadlock):
        on_channel(check)
    assert times[0] < 1


# --- Version 2


def test_reads_of_version_2_are_answered_by_their_ids_in_any_order() -> None:
    async def check(world: World) -> None:
        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(world.channel.read(LEDGER, entry_id)) for entry_id in ids(0, 1, -1)]
            heard = await world.bookie.hear(3)
            assert sorted(heard, key=str) == [(v2.READ_ENTRY, (0, LEDGER, entry_id, None)) for entry_id in (-1, 0, 1)]
            world.bookie.say(read_answer(1, b"one"), read_answer(-1, b"last"), read_answer(0, b""))
        assert [read.result() for read in reads] == [
            ReadResponse(LEDGER, EntryId(0), b""),
            ReadResponse(LEDGER, EntryId(1), b"one"),
            ReadResponse(LEDGER, NO_ENTRY, b"last"),
        ]

    on_channel(check)


def test_two_reads_of_one_entry_get_an_answer_each() -> None:
    async def check(world: World) -> None:
        reads = [asyncio.ensure_future(world.channel.read(LEDGER, E3)) for _ in range(2)]
        await world.bookie.hear(2)
        world.bookie.say(read_answer(3, b"first"), read_answer(3, b"second"))
        assert {(await read).body for read in reads} == {b"first", b"second"}

    on_channel(check)


def test_reads_of_version_2_fail_with_the_error_of_the_status() -> None:
    async def check(world: World) -> None:
        for status in ERRORS:
            call = asyncio.ensure_future(world.channel.read(LEDGER, E3))
            await world.bookie.until(lambda: bool(world.bookie.heard))
            world.bookie.heard.clear()
            world.bookie.say(read_answer(3, None, status))
            with pytest.raises(QuireError) as raised:
                await call
            seen = Status.EIO if status is Status.EUNKNOWNLEDGERSTATE else status  # Version 2 has no word for it.
            assert type(raised.value) is ERRORS[seen]
            assert raised.value.facts["ledger_id"] == LEDGER
            assert raised.value.facts["entry_id"] == 3

    on_channel(check)


def test_a_fence_is_not_believed_on_the_answer_to_a_plain_read() -> None:
    """FencesAreReal: version 2 cannot tell the two answers apart, and recovery rests on the fence.

    Method: a plain read is given up; while its answer is still owed, a fencing read of the same entry is sent.
    """

    async def check(world: World) -> None:
        with pytest.raises(BookieUnavailable):
            await world.channel.read(LEDGER, NO_ENTRY, timeout_s=1)
        fencing = asyncio.ensure_future(world.channel.read(LEDGER, NO_ENTRY, master_key=KEY, high_priority=True))
        plain = asyncio.ensure_future(world.channel.read(LEDGER, NO_ENTRY))
        heard = await world.bookie.hear(3)
        flags = v2.DO_FENCING | v2.HIGH_PRIORITY
        assert (v2.READ_ENTRY, (flags, LEDGER, NO_ENTRY, KEY)) in heard[1:]
        world.bookie.say(read_answer(-1, b"late"), read_answer(-1, b"plain"))
        assert (await plain).body == b"late"
        await world.pass_time(1)
        assert not fencing.done()
        world.bookie.say(read_answer(-1, b"fenced"))
        assert (await fencing).body == b"fenced"

    on_channel(check)


def test_a_bookie_that_leaves_too_many_reads_unanswered_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.rpc.exchange.ABANDONED_MAX", 3)

    async def check(world: World) -> None:
        for entry_id in ids(0, 1, 2):
            with pytest.raises(BookieUnavailable):
                await world.channel.read(LEDGER, entry_id, timeout_s=0.1)
        world.bookie.say(read_answer(0, b"late"))
        for entry_id in ids(3, 4):
            assert not world.channel.closed
            with pytest.raises(BookieUnavailable):
                await world.channel.read(LEDGER, entry_id, timeout_s=0.1)
        await world.channel.wait_closed()

    on_channel(check)


def test_a_batch_is_known_by_its_request() -> None:
    async def check(world: World) -> None:
        ask = world.channel.read_batch
        first = asyncio.ensure_future(ask(LEDGER, E3, entries_max=10, bytes_max=1000))
        await world.bookie.hear(1)
        second = asyncio.ensure_future(ask(LEDGER, E3, entries_max=0, bytes_max=0, master_key=KEY))
        heard = await world.bookie.hear(2)
        assert heard == [
            (v2.BATCH_READ_ENTRY, (0, LEDGER, E3, 1, 10, 1000, None)),
            (v2.BATCH_READ_ENTRY, (v2.DO_FENCING, LEDGER, E3, 2, 0, 0, KEY)),
        ]
        for number, entries in ((2, [b"alone"]), (1, [b"three", b"", b"five"])):
            world.bookie.say(*map(bytes, v2.batch_read_response_parts(OK, LEDGER, E3, number, entries)))
        assert await first == [b"three", b"", b"five"]
        assert await second == [b"alone"]
        refused = asyncio.ensure_future(ask(LEDGER, E3, entries_max=1, bytes_max=1, master_key=KEY))
        await world.bookie.hear(3)
        world.bookie.say(*map(bytes, v2.batch_read_response_parts(Status.EUA, LEDGER, E3, 3)))
        with pytest.raises(WrongPassword):
            await refused

    on_channel(check)


def test_a_fence_of_version_2_that_is_not_answered_may_have_happened() -> None:
    async def check(world: World) -> None:
        with pytest.raises(BookieOutcomeUnknown):
            await world.channel.read(LEDGER, E3, master_key=KEY)
        with pytest.raises(BookieOutcomeUnknown):
            await world.channel.read_batch(LEDGER, E3, entries_max=1, bytes_max=1, master_key=KEY)
        with pytest.raises(BookieUnavailable):
            await world.channel.read_batch(LEDGER, E3, entries_max=1, bytes_max=1)

    on_channel(check)


# --- Both


def test_version_3_may_come_before_version_2_and_not_after() -> None:
    """A Java bookie that has met version 2 misreads version 3, and closes the connection over it."""

    async def check(world: World) -> None:
        call = asyncio.ensure_future(world.channel.auth(AuthMessage("sasl")))
        heard = await world.bookie.hear_v3()
        world.bookie.say(v3.encode_response(heard.txn_id, OK, AuthMessage("sasl")))
        await call
        slow = asyncio.ensure_future(world.channel.bookie_info())
        await world.bookie.until(lambda: bool(world.bookie.heard))
        sink = Sink()
        world.send(range(1), sink)
        for ask, _, _, _ in OPERATIONS.values():
            with pytest.raises(InvalidArgument, match="version 2"):
                await ask(world.channel)
        with pytest.raises(InvalidArgument, match="version 2"):
            world.channel.send_add_v3(LEDGER, E3, KEY, [b"e" * 40], sink)
        heard_all = await world.bookie.hear(2)
        assert isinstance(heard_all[0], Request)
        assert heard_all[0].operation is Operation.GET_BOOKIE_INFO
        world.bookie.say(add_ok(0), v3.encode_response(heard_all[0].txn_id, OK, BookieInfoResponse(1, 1)))
        assert await slow == BookieInfoResponse(1, 1), "what was asked before is still understood"
        await sink.until(lambda: sink.answers == [(0, OK)])

    on_channel(check)
