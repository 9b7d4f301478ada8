"""Adds: who may store what, in which order it is decided, and what is answered."""

import asyncio
import struct

import pytest

from quire.codec.digest import Crc32cDigest
from quire.codec.entry import EntryCodec
from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import AddRequest, AddResponse
from quire.protocol.space import SpaceMode
from quire.types import EntryId, LedgerId
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    V3,
    WRONG_KEY,
    Answer,
    Version,
    World,
    decoded,
    entry,
    with_bookie,
    write_lac,
)

OK = Status.EOK
INT64_MAX = 2**63 - 1


def test_an_add_is_answered_with_its_ids(version: Version) -> None:
    async def check(world: World) -> None:
        for ledger_id, entry_id in [(LEDGER, 0), (LEDGER, 1), (0, 0), (INT64_MAX, INT64_MAX), (2**40, 2**33)]:
            assert await world.client.add(version, ledger_id, entry_id) == Answer(OK, ledger_id, entry_id)
            stored = await world.client.read(version, ledger_id, entry_id)
            assert stored == Answer(OK, ledger_id, entry_id, entry(ledger_id, entry_id))

    with_bookie(check)


def test_adds_that_arrive_in_pieces_are_not_mixed_up_with_those_of_others(version: Version) -> None:
    """All connections receive into the same memory. Method: two clients take turns, a piece each; entries are large."""

    async def check(world: World) -> None:
        clients = [world.client, await world.connect()]
        bodies = [entry(LEDGER + place, 0, bytes([place]) * 50_000) for place in range(2)]
        frames = [version.add(LEDGER + place, 0, body) for place, body in enumerate(bodies)]
        for start in range(0, max(map(len, frames)), 7_001):
            for client, frame in zip(clients, frames, strict=True):
                client.send(frame[start : start + 7_001])
            await world.pass_time(0.1)
        for place, client in enumerate(clients):
            assert version.answer(await client.frame()) == Answer(OK, LEDGER + place, 0)
            assert (await client.read(version, LEDGER + place, 0)).body == bodies[place]
        clients[1].close()

    with_bookie(check)


def test_entries_may_come_out_of_order_sparse_and_twice(version: Version) -> None:
    async def check(world: World) -> None:
        for entry_id in (5, 2, 1_000_000, 2, 0, 5):
            assert await world.client.add(version, LEDGER, entry_id) == Answer(OK, LEDGER, entry_id)
        await world.restart()
        for entry_id in (0, 2, 5, 1_000_000):
            assert (await world.client.read(version, LEDGER, entry_id)).body == entry(LEDGER, entry_id)
        assert (await world.client.read(version, LEDGER, 1)).status is Status.ENOENTRY
        assert (await world.client.read(version, LEDGER, -1)).body == entry(LEDGER, 1_000_000)

    with_bookie(check)


def test_a_duplicate_may_differ_and_one_of_the_two_stays(version: Version) -> None:
    """Recovery sends entries anew with another LAC, also where the first copy is in an entry log already."""

    async def check(world: World) -> None:
        first, second = entry(LEDGER, 3, lac=0), entry(LEDGER, 3, lac=2)
        await world.client.add(version, LEDGER, 3, first)
        await world.storage.checkpoint()
        assert await world.client.add(version, LEDGER, 3, second) == Answer(OK, LEDGER, 3)
        assert (await world.client.read(version, LEDGER, 3)).body in (first, second)
        await world.restart(crash=True)
        assert (await world.client.read(version, LEDGER, 3)).body in (first, second)

    with_bookie(check)


def test_the_wrong_key_is_refused_before_all_else(version: Version) -> None:
    """Also in a fenced ledger, also for recovery, and after a restart."""

    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        assert await world.client.add(version, LEDGER, 1, key=WRONG_KEY) == Answer(Status.EUA, LEDGER, 1)
        await world.client.read(version, LEDGER, -1, fence=KEY)
        assert (await world.client.add(version, LEDGER, 1, key=WRONG_KEY)).status is Status.EUA
        assert (await world.client.add(version, LEDGER, 1, key=WRONG_KEY, recovery=True)).status is Status.EUA
        await world.restart()
        assert (await world.client.add(version, LEDGER, 1, key=WRONG_KEY, recovery=True)).status is Status.EUA
        assert (await world.client.read(version, LEDGER, 1)).status is Status.ENOENTRY

    with_bookie(check)


def test_keys_of_other_lengths_are_other_keys() -> None:
    """Version 3 does not say how long a key is."""

    async def check(world: World) -> None:
        for number, key in enumerate([b"", b"k", bytes(1000)]):
            assert (await world.client.add(V3, number, 0, key=key)).status is OK
            assert (await world.client.add(V3, number, 1, key=key + b"\0")).status is Status.EUA
            assert (await world.client.add(V3, number, 1, key=key)).status is OK

    with_bookie(check)


def test_a_fenced_ledger_takes_entries_from_recovery_only(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.add(version, LEDGER, 0)
        await world.client.read(version, LEDGER, -1, fence=KEY)
        assert await world.client.add(version, LEDGER, 1) == Answer(Status.EFENCED, LEDGER, 1)
        assert (await world.client.add(version, LEDGER, 1, priority=True)).status is Status.EFENCED
        assert await world.client.add(version, LEDGER, 1, recovery=True) == Answer(OK, LEDGER, 1)
        assert (await world.client.read(version, LEDGER, 1)).body == entry(LEDGER, 1)

    with_bookie(check)


def test_a_ledger_that_was_fenced_and_deleted_stays_refused(version: Version) -> None:
    async def check(world: World) -> None:
        await world.client.read(version, LEDGER, -1, fence=KEY)
        until_ms = world.bookie.host.clock.wall_ms() + 1_000_000
        await world.storage.delete([LEDGER], tombstones_until_ms=until_ms)
        assert await world.client.add(version, LEDGER, 0) == Answer(Status.EFENCED, LEDGER, 0)
        fenced = await world.client.read(version, LEDGER, -1, fence=KEY)
        assert fenced == Answer(Status.ENOLEDGER, LEDGER, -1)
        assert (await world.client.ask_v3(write_lac(3))).status is Status.ENOLEDGER
        assert (await world.client.read(version, LEDGER, 0)).status is Status.ENOLEDGER

    with_bookie(check)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(LEDGER, -1), (LEDGER, -0x1000), (-1, 0), (-(2**63), 1 - 2**63)])
def test_negative_ids_are_no_ids(version: Version, ledger_id: int, entry_id: int) -> None:
    async def check(world: World) -> None:
        answer = await world.client.add(version, ledger_id, entry_id)
        assert answer == Answer(Status.EBADREQ, ledger_id, entry_id)
        assert (await world.client.read(version, LEDGER, 0)).status is Status.ENOLEDGER  # It made no ledger.

    with_bookie(check)


@pytest.mark.parametrize("size", [0, 1, 23])
def test_an_entry_needs_ids_and_a_lac(size: int) -> None:
    async def check(world: World) -> None:
        body = entry(LEDGER, 4)[:size]
        assert await world.client.add(V3, LEDGER, 4, body) == Answer(Status.EBADREQ, LEDGER, 4)
        assert (await world.client.add(V3, LEDGER, 4, entry(LEDGER, 4)[:24])).status is OK

    with_bookie(check)


def test_a_short_entry_of_version_2_is_refused_if_its_ids_can_be_read() -> None:
    async def check(world: World) -> None:
        answer = await world.client.add(V2, LEDGER, 4, entry(LEDGER, 4)[:16])
        assert answer == Answer(Status.EBADREQ, LEDGER, 4)
        assert (await world.client.add(V2, LEDGER, 4, entry(LEDGER, 4)[:24])).status is OK
        world.client.send(V2.add(LEDGER, 4, entry(LEDGER, 4)[:15]))  # There is nothing to answer with.
        await world.client.closed()

    with_bookie(check)


def test_what_is_stored_has_the_ids_of_the_body() -> None:
    """And the answer those of the request, which is acknowledged by the journal of the body's ledger."""

    async def check(world: World) -> None:
        body = entry(8, 5)
        answer = await world.client.ask_v3(AddRequest(LEDGER, EntryId(99), KEY, body))
        assert (answer.status, answer.content) == (OK, AddResponse(LEDGER, EntryId(99)))
        assert (await world.client.read(V3, 8, 5)).body == body
        assert (await world.client.read(V3, LEDGER, 99)).status is Status.ENOLEDGER

    with_bookie(check)


def test_an_entry_that_contradicts_its_digest_is_refused() -> None:
    """Once a ledger has shown its digest type. It was damaged on the way, and would be lost if it were acknowledged."""

    async def check(world: World) -> None:
        codec = EntryCodec(LedgerId(LEDGER), Crc32cDigest())
        bodies = [
            codec.prefix(EntryId(number), b"payload", lac=EntryId(-1), length=7) + b"payload" for number in range(2)
        ]
        assert (await world.client.add(V2, LEDGER, 0, bodies[0])).status is OK
        assert (await world.client.add(V2, LEDGER, 1, bodies[1][:-1] + b"D")).status is Status.EBADREQ
        assert (await world.client.read(V2, LEDGER, 1)).status is Status.ENOENTRY
        assert (await world.client.add(V2, LEDGER, 1, bodies[1])).status is OK

    with_bookie(check)


# --- Versions


@pytest.mark.parametrize("number", [1, 2])
def test_a_header_of_version_3_must_say_3(number: int) -> None:
    async def check(world: World) -> None:
        message = pb.Request.FromString(V3.add(LEDGER, 4)[4:])
        message.header.version = number  # type: ignore[assignment]
        data = message.SerializeToString()
        frame = await world.client.ask(len(data).to_bytes(4, "big") + data)
        assert V3.answer(frame) == Answer(Status.EBADVERSION, LEDGER, 4)
        assert (await world.client.read(V3, LEDGER, 4)).status is Status.ENOLEDGER

    with_bookie(check)


@pytest.mark.parametrize("number", [3, 9, 11, 255])
def test_a_packet_of_a_later_version_is_refused_in_kind(number: int) -> None:
    async def check(world: World) -> None:
        for request in (V2.add(LEDGER, 4), V2.read(LEDGER, 4)):
            answer = await world.client.ask(request[:4] + bytes([number]) + request[5:])
            assert struct.unpack(">IBBhiqq", answer) == (24, number, request[5], 0, 103, LEDGER, 4)
        assert (await world.client.read(V2, LEDGER, 4)).status is Status.ENOLEDGER

    with_bookie(check)


@pytest.mark.parametrize(("header", "answered"), [("00000001", "00000001"), ("01010000", "01010000")])
def test_the_oldest_packets_are_answered_in_kind(header: str, answered: str) -> None:
    async def check(world: World) -> None:
        request = V2.add(LEDGER, 4)
        answer = await world.client.ask(request[:4] + bytes.fromhex(header) + request[8:])
        assert answer == bytes.fromhex("00000018" + answered + "00000000") + struct.pack(">qq", LEDGER, 4)
        read = V2.read(LEDGER, 4)
        header_2, answered_2 = (bytes.fromhex(text.replace("01", "02", 1)) for text in (header, answered))
        if header == "01010000":
            header_2 = answered_2 = bytes.fromhex("01020000")
        answer = await world.client.ask(read[:4] + header_2 + read[8:])
        assert answer[4:] == answered_2 + bytes(4) + struct.pack(">qq", LEDGER, 4) + entry(LEDGER, 4)

    with_bookie(check)


# --- Read-only bookies


def test_a_read_only_bookie_takes_what_is_urgent_until_it_is_closed(version: Version) -> None:
    """It goes on serving reads, and fences."""

    async def check(world: World) -> None:
        client = world.client
        await client.add(version, LEDGER, 0)
        world.service.mode = SpaceMode.READ_ONLY
        assert await client.add(version, LEDGER, 1) == Answer(Status.EREADONLY, LEDGER, 1)
        assert (await client.add(version, LEDGER, 1, recovery=True)).status is Status.EREADONLY
        assert (await client.add(version, LEDGER, 1, priority=True)).status is OK
        assert (await client.add(version, LEDGER, 2, recovery=True, priority=True)).status is OK
        world.service.mode = SpaceMode.CLOSED
        assert (await client.add(version, LEDGER, 3, recovery=True, priority=True)).status is Status.EREADONLY
        assert (await client.read(version, LEDGER, -1, fence=KEY)).body == entry(LEDGER, 2)
        world.service.mode = SpaceMode.WRITABLE
        assert (await client.add(version, LEDGER, 3)).status is Status.EFENCED

    with_bookie(check)


def test_a_read_only_bookie_says_so_before_anything_about_ledger_or_entry(version: Version) -> None:
    async def check(world: World) -> None:
        client = world.client
        await client.read(version, LEDGER, -1, fence=KEY)
        world.service.mode = SpaceMode.READ_ONLY
        assert (await client.add(version, LEDGER, 0)).status is Status.EREADONLY
        assert (await client.add(version, LEDGER, 0, key=WRONG_KEY)).status is Status.EREADONLY
        assert (await client.add(version, LEDGER, -1)).status is Status.EREADONLY
        assert (await client.add(version, LEDGER, 1, entry(LEDGER, 1)[:20])).status is Status.EREADONLY

    with_bookie(check)


def test_urgency_is_not_repeated_in_the_answer() -> None:
    async def check(world: World) -> None:
        for request in (V3.add(LEDGER, 0, priority=True), V3.read(LEDGER, 0, priority=True)):
            message = pb.Response.FromString((await world.client.ask(request))[4:])
            assert not message.header.HasField("priority")

    with_bookie(check)


def test_versions_may_change_from_frame_to_frame() -> None:
    async def check(world: World) -> None:
        versions: list[Version] = [V2, V3, V3, V2, V3, V2]
        world.client.send(*(version.add(LEDGER, number) for number, version in enumerate(versions)))
        frames = [await world.client.frame() for _ in range(6)]
        kinds = {frame[4] for frame in frames}
        assert kinds == {0x0A, v2.VERSION}
        answers = [(V3 if frame[4] == 0x0A else V2).answer(frame) for frame in frames]
        assert sorted(answer.entry_id for answer in answers) == list(range(6))
        assert {answer.status for answer in answers} == {OK}

    with_bookie(check)


def test_adds_that_come_at_once_are_all_answered_once(version: Version) -> None:
    """From several connections, to several ledgers."""

    async def check(world: World) -> None:
        clients = [world.client, await world.connect(), await world.connect()]

        async def write(number: int) -> None:
            client = clients[number]
            client.send(*(version.add(number, entry_id) for entry_id in range(300)))
            answers = [version.answer(await client.frame()) for _ in range(300)]
            assert sorted(answers) == [Answer(OK, number, entry_id) for entry_id in range(300)]

        await asyncio.gather(*(write(number) for number in range(3)))
        assert not any(client.frames for client in clients)
        assert world.service.metrics.requests.add_entry.ok.count == 900
        assert world.service.metrics.requests.adds_in_progress.value == 0

    with_bookie(check)


def test_the_answer_to_an_unusable_add_names_its_transaction() -> None:
    async def check(world: World) -> None:
        answer = decoded(await world.client.ask(V3.add(LEDGER, -5)))
        assert answer.status is Status.EBADREQ
        assert answer.txn_id == pb.Request.FromString(V3.add(LEDGER, -5)[4:]).header.txn_id - 1

    with_bookie(check)
