"""Explicit LACs, forcing, lists of entries, the state of the disks, authentication."""

import pytest

from quire.bookie.settings import ServerSettings
from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire import v2, v3
from quire.codec.wire.availability import decode_availability
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import (
    AUTH_DISABLED_PLUGIN,
    FREE_DISK,
    TOTAL_DISK,
    AddRequest,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    RequestContent,
    ResponseContent,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.protocol.space import SpaceMode
from quire.types import EntryId, LedgerId
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    V3,
    WRONG_KEY,
    World,
    bookie_settings,
    entry,
    lac_packet,
    with_bookie,
    write_lac,
)

OK = Status.EOK
NEGATIVE = LedgerId(-5)


async def expect(world: World, request: RequestContent, status: Status, content: ResponseContent | None) -> None:
    answer = await world.client.ask_v3(request)
    assert (answer.status, answer.content) == (status, content)


# --- WRITE_LAC


def test_an_explicit_lac_makes_the_ledger_with_its_key() -> None:
    async def check(world: World) -> None:
        await expect(world, write_lac(3), OK, WriteLacResponse(LEDGER))
        assert (await world.client.add(V3, LEDGER, 0, key=WRONG_KEY)).status is Status.EUA
        await expect(world, write_lac(4, key=WRONG_KEY), Status.EUA, WriteLacResponse(LEDGER))
        assert (await world.client.add(V3, LEDGER, 0)).status is OK

    with_bookie(check)


@pytest.mark.parametrize("crash", [False, True])
def test_the_last_explicit_lac_counts_as_it_was_sent(crash: bool) -> None:
    """Also over a higher one, also behind a fence, also after a restart."""

    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        await expect(world, write_lac(9), OK, WriteLacResponse(LEDGER))
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        await expect(world, write_lac(5), OK, WriteLacResponse(LEDGER))
        await world.restart(crash=crash)
        expected = ReadLacResponse(LEDGER, lac_packet(LEDGER, 5), entry(LEDGER, 0))
        await expect(world, ReadLacRequest(LEDGER), OK, expected)

    with_bookie(check)


def test_a_read_only_bookie_takes_no_explicit_lac_however_urgent() -> None:
    async def check(world: World) -> None:
        world.service.mode = SpaceMode.READ_ONLY
        answer = await world.client.ask_v3(write_lac(3), priority=True)
        assert (answer.status, answer.content) == (Status.EREADONLY, WriteLacResponse(LEDGER))
        await expect(world, ReadLacRequest(LEDGER), Status.ENOENTRY, ReadLacResponse(LEDGER))

    with_bookie(check)


@pytest.mark.parametrize("size", [0, 8, 15])
def test_a_packet_too_short_for_a_lac_is_refused(size: int) -> None:
    async def check(world: World) -> None:
        request = WriteLacRequest(LEDGER, EntryId(3), KEY, lac_packet(LEDGER, 3)[:size])
        await expect(world, request, Status.EBADREQ, WriteLacResponse(LEDGER))
        assert (await world.client.read(V3, LEDGER, 0)).status is Status.ENOLEDGER

    with_bookie(check)


def test_there_is_no_lac_of_a_negative_ledger() -> None:
    async def check(world: World) -> None:
        await expect(world, write_lac(3, ledger_id=NEGATIVE), Status.EBADREQ, WriteLacResponse(NEGATIVE))

    with_bookie(check)


# --- READ_LAC


def test_the_three_cases_of_reading_a_lac() -> None:
    async def check(world: World) -> None:
        nothing, packet = ReadLacResponse(LEDGER), lac_packet(LEDGER, 3)
        await expect(world, ReadLacRequest(LEDGER), Status.ENOENTRY, nothing)  # Not ENOLEDGER, as Apache has it.
        await expect(world, ReadLacRequest(NEGATIVE), Status.ENOENTRY, ReadLacResponse(NEGATIVE))
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        await expect(world, ReadLacRequest(LEDGER), Status.ENOENTRY, nothing)
        await world.client.ask_v3(write_lac(3))
        await expect(world, ReadLacRequest(LEDGER), Status.EIO, ReadLacResponse(LEDGER, packet))
        await world.client.add(V3, LEDGER, 8, recovery=True)
        await expect(world, ReadLacRequest(LEDGER), OK, ReadLacResponse(LEDGER, packet, entry(LEDGER, 8)))
        other = LedgerId(LEDGER + 1)
        await world.client.add(V3, other, 2)
        await expect(world, ReadLacRequest(other), OK, ReadLacResponse(other, None, entry(other, 2)))

    with_bookie(check)


def test_a_lac_that_cannot_be_read_is_no_absence() -> None:
    """A reader that counted it as "nothing here" could believe in a LAC below the true one."""

    async def check(world: World) -> None:
        await world.client.add(V3, LEDGER, 0)
        await world.restart()
        world.bookie.host.disk.faults.fail_next("read", times=1000)
        await expect(world, ReadLacRequest(LEDGER), Status.EIO, ReadLacResponse(LEDGER))
        world.bookie.host.disk.faults.repair()

    with_bookie(check)


# --- FORCE_LEDGER


def test_forcing_needs_no_ledger_no_key_and_no_writable_bookie() -> None:
    async def check(world: World) -> None:
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        world.service.mode = SpaceMode.CLOSED
        for ledger_id in (LEDGER, LedgerId(99), LedgerId(0), NEGATIVE):
            await expect(world, ForceLedgerRequest(ledger_id), OK, ForceLedgerResponse(ledger_id))

    with_bookie(check, settings=bookie_settings(journals=3))


# --- GET_LIST_OF_ENTRIES_OF_LEDGER


@pytest.mark.parametrize("restarted", [False, True])
def test_a_list_holds_what_is_here_and_nothing_else(restarted: bool) -> None:
    """From cache and index together, with duplicates, up to the highest entry id there is."""

    async def check(world: World) -> None:
        await expect(world, ListEntriesRequest(LEDGER), Status.ENOLEDGER, ListEntriesResponse(LEDGER))
        await expect(world, ListEntriesRequest(NEGATIVE), Status.ENOLEDGER, ListEntriesResponse(NEGATIVE))
        ids = [0, 1, 2, 9, 11, 12, 13, 400, 2**62, 2**63 - 1]
        for entry_id in ids[::2]:
            await world.client.add(V3, LEDGER, entry_id)
        await world.storage.checkpoint()
        for entry_id in ids[1::2] + ids[:4]:
            await world.client.add(V3, LEDGER, entry_id)
        if restarted:
            await world.restart()
        answer = await world.client.ask_v3(ListEntriesRequest(LEDGER))
        assert isinstance(answer.content, ListEntriesResponse)
        assert list(decode_availability(answer.content.availability or b"")) == ids

    with_bookie(check)


def test_the_list_of_an_empty_ledger_is_empty() -> None:
    async def check(world: World) -> None:
        await world.client.read(V3, LEDGER, -1, fence=KEY)
        await expect(world, ListEntriesRequest(LEDGER), OK, ListEntriesResponse(LEDGER, bytes(64)))

    with_bookie(check)


def test_a_list_that_fits_into_no_frame_is_an_error() -> None:
    """It would cost the client its connection."""

    async def check(world: World) -> None:
        for entry_id in range(0, 100, 2):
            world.client.send(V3.add(LEDGER, entry_id))
        for _ in range(50):
            await world.client.frame()
        await expect(world, ListEntriesRequest(LEDGER), Status.EIO, ListEntriesResponse(LEDGER))

    with_bookie(check, settings=bookie_settings(server=ServerSettings(frame_bytes_max=1500)))


# --- GET_BOOKIE_INFO


@pytest.mark.parametrize("requested", [None, 0, TOTAL_DISK, FREE_DISK, TOTAL_DISK | FREE_DISK, -1, 4, 2**62])
def test_the_flags_choose_what_is_told_of_the_disks(requested: int | None) -> None:
    async def check(world: World) -> None:
        flags, disk = requested or 0, world.bookie.host.disk
        expected = BookieInfoResponse(
            disk.faults.capacity_bytes if flags & TOTAL_DISK else None, disk.free_bytes() if flags & FREE_DISK else None
        )
        await expect(world, BookieInfoRequest(requested), OK, expected)

    with_bookie(check)


def test_disks_that_cannot_be_asked_are_an_error() -> None:
    async def check(world: World) -> None:
        world.bookie.host.disk.faults.fail_next("usage")
        await expect(world, BookieInfoRequest(), Status.EIO, BookieInfoResponse())
        assert (await world.client.ask_v3(BookieInfoRequest())).status is OK

    with_bookie(check)


# --- AUTH, and what is not understood


@pytest.mark.parametrize("plugin", ["sasl", AUTH_DISABLED_PLUGIN, "", "ключ"])
def test_nobody_has_to_authenticate(plugin: str) -> None:
    async def check(world: World) -> None:
        for _ in range(2):
            await expect(world, AuthMessage(plugin, b"secret"), OK, AuthMessage(AUTH_DISABLED_PLUGIN))
            answer = await world.client.ask(v2.encode_auth(AuthMessage(plugin, b"secret")))
            assert answer == v2.encode_auth(AuthMessage(AUTH_DISABLED_PLUGIN))
        assert (await world.client.add(V2, LEDGER, 0)).status is OK

    with_bookie(check)


@pytest.mark.parametrize("operation", list(Operation))
def test_a_request_without_its_content_is_refused_and_nothing_is_done(operation: Operation) -> None:
    """Operations 3, 4 and 12 never have any. The connection stays."""

    async def check(world: World) -> None:
        message = pb.Request(header=pb.PacketHeader(version=pb.VERSION_THREE, operation=operation.name, txn_id=77))
        data = message.SerializeToString()
        answer = await world.client.ask(len(data).to_bytes(4, "big") + data)
        assert answer == v3.encode_refusal(77, operation, Status.EBADREQ)
        assert (await world.client.add(V3, LEDGER, 0)).status is OK

    with_bookie(check)


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(
    "content",
    [
        AddRequest(LEDGER, EntryId(4), KEY, entry(LEDGER, 4)),
        ReadRequest(LEDGER, EntryId(4)),
        write_lac(4),
        ReadLacRequest(LEDGER),
        ForceLedgerRequest(LEDGER),
        BookieInfoRequest(),
        ListEntriesRequest(LEDGER),
        AuthMessage("sasl"),
    ],
    ids=lambda content: type(content).__name__,
)
def test_every_request_of_another_version_is_refused_with_its_ids(content: RequestContent, number: int) -> None:
    async def check(world: World) -> None:
        message = pb.Request.FromString(V3.frame(content)[4:])
        message.header.version = number  # type: ignore[assignment]
        data = message.SerializeToString()
        frame = await world.client.ask(len(data).to_bytes(4, "big") + data)
        response = pb.Response.FromString(frame[4:])
        assert (int(response.status), int(response.header.version)) == (Status.EBADVERSION, 3)
        assert response.header.txn_id == message.header.txn_id
        (field,) = [name.name for name, _ in response.ListFields() if name.name not in ("header", "status")]
        inner = getattr(response, field)
        if field != "auth":
            assert inner.status == Status.EBADVERSION
        if hasattr(inner, "ledger_id"):
            assert inner.ledger_id == LEDGER
        if hasattr(inner, "entry_id"):
            assert inner.entry_id == 4
        assert (await world.client.read(V2, LEDGER, 4)).status is Status.ENOLEDGER

    with_bookie(check)
