"""What is not the protocol ends the connection that it came on, and nothing else."""

import pytest

from quire.bookie.settings import ServerSettings
from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FRAME_BYTES_MAX
from quire.codec.wire.v3_messages import ReadRequest
from quire.types import EntryId
from tests.support.raw_bookie_client import (
    LEDGER,
    V2,
    V3,
    Answer,
    World,
    bookie_settings,
    entry,
    leftovers,
    with_bookie,
)

OK = Status.EOK


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def v3_header(**fields: tuple[int, int]) -> bytes:
    """A request whose header has these tags and values."""
    header = b"".join(map(bytes, fields.values()))
    return framed(b"\x0a" + bytes([len(header)]) + header)


NOT_THE_PROTOCOL = {
    "a frame of no bytes": bytes(4),
    "a frame above the limit": (FRAME_BYTES_MAX - 3).to_bytes(4, "big"),
    "the largest length": b"\xff\xff\xff\xff",
    "HTTP": b"GET / HTTP/1.1\r\nHost: b1\r\n\r\n",
    "TLS without START_TLS": bytes.fromhex("16030100a5010000a10303") + bytes(100),
    "one byte": framed(b"\x02"),
    "a header alone": framed(bytes.fromhex("02010000")),
    "opcode 4": framed(bytes.fromhex("02040000") + bytes(40)),
    "opcode 5": framed(bytes.fromhex("02050000") + bytes(40)),
    "opcode 6": framed(bytes.fromhex("02060000") + bytes(40)),
    "opcode 8": framed(bytes.fromhex("02080000") + bytes(40)),
    "opcode 0 of the oldest version": framed(bytes(40)),
    "opcode 255": framed(b"\x02\xff\x00\x00"),
    "a read without an entry id": framed(bytes.fromhex("02020000") + bytes(15)),
    "a fencing read without a key": framed(bytes.fromhex("02020001") + bytes(16)),
    "a fencing read with half a key": framed(bytes.fromhex("02020001") + bytes(35)),
    "a batch read without a size": framed(bytes.fromhex("02070000") + bytes(35)),
    "an add without an entry": framed(bytes.fromhex("02010000") + bytes(20)),
    "an auth that is no message": framed(bytes.fromhex("02030000") + b"\xff\xff"),
    "an auth without a plugin": framed(bytes.fromhex("02030000") + b"\x12\x00"),
    "v3 without a header": framed(b"\x0a\x00"),
    "v3 that is cut off": framed(V3.read(LEDGER, 0)[4:-1]),
    "v3 without an operation": v3_header(version=(0x08, 3), txn_id=(0x18, 1)),
    "v3 without a transaction": v3_header(version=(0x08, 3), operation=(0x10, 1)),
    "v3 with an unknown operation": v3_header(version=(0x08, 3), operation=(0x10, 13), txn_id=(0x18, 1)),
    "v3 with operation 0": v3_header(version=(0x08, 3), operation=(0x10, 0), txn_id=(0x18, 1)),
    "v3 with an unknown version": v3_header(version=(0x08, 4), operation=(0x10, 1), txn_id=(0x18, 1)),
    "v3 with content that lacks a field": framed(
        pb.Request(
            header=pb.PacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txn_id=1),
            read=pb.ReadRequest(ledger_id=1),
        ).SerializePartialToString()
    ),
    "v3 with an auth plugin that is no text": framed(
        bytes.fromhex("0a060803100518012a00") + b"\xb2\x06\x06\x0a\x02\xff\xfe\x12\x00"
    ),
}


@pytest.mark.parametrize("what", NOT_THE_PROTOCOL)
def test_the_connection_is_closed_without_an_answer_and_the_bookie_lives_on(what: str) -> None:
    async def check(world: World) -> None:
        other = await world.connect()
        await other.add(V2, LEDGER, 0)
        world.client.send(NOT_THE_PROTOCOL[what])
        await world.client.closed()
        assert (await other.read(V2, LEDGER, 0)).body == entry(LEDGER, 0)
        assert (await other.add(V3, LEDGER, 1)).status is OK
        assert len(world.service.connections) == 1
        assert world.service.metrics.damage.protocol_violations.value == 1
        assert (await (await world.connect()).read(V3, LEDGER, 1)).body == entry(LEDGER, 1)

    with_bookie(check)


@pytest.mark.parametrize("what", ["a frame of no bytes", "opcode 4", "v3 that is cut off"])
def test_what_was_asked_before_is_still_answered_as_far_as_it_is_known(what: str) -> None:
    """Reads of what is in memory are; an add may be stored without an answer."""

    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 0)
        world.client.send(V2.read(LEDGER, 0), V2.add(LEDGER, 1), NOT_THE_PROTOCOL[what], V2.add(LEDGER, 2))
        assert V2.answer(await world.client.frame()) == Answer(OK, LEDGER, 0, entry(LEDGER, 0))
        await world.client.until(lambda: world.client.is_lost)
        other = await world.connect()
        assert (await other.read(V2, LEDGER, 2)).status is Status.ENOENTRY  # Nothing after it was looked at.
        await world.until(lambda: "adds in progress" not in leftovers(world.service))

    with_bookie(check)


def test_unknown_fields_and_flags_are_ignored() -> None:
    """Later releases may send more."""

    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 0)
        more = V3.read(LEDGER, 0)[4:] + bytes.fromhex("c20c08 0a0161 12036c6f67") + bytes.fromhex("f20f0141")
        assert V3.answer(await world.client.ask(framed(more))).body == entry(LEDGER, 0)
        read = V2.read(LEDGER, 0)
        assert V2.answer(await world.client.ask(read[:6] + b"\xff\xfa" + read[8:])).body == entry(LEDGER, 0)
        longer = framed(read[4:] + b"more")
        assert V2.answer(await world.client.ask(longer)).body == entry(LEDGER, 0)

    with_bookie(check)


def test_an_unknown_read_flag_is_none() -> None:
    async def check(world: World) -> None:
        await world.client.add(V2, LEDGER, 0)
        request = pb.Request.FromString(V3.frame(ReadRequest(LEDGER, EntryId(0)))[4:])
        inner = request.read.SerializeToString() + bytes.fromhex("a00607")
        data = bytes.fromhex("0a06080310011801") + b"\xa2\x06" + bytes([len(inner)]) + inner
        assert V3.answer(await world.client.ask(framed(data))).body == entry(LEDGER, 0)

    with_bookie(check)


@pytest.mark.parametrize("excess", [0, 1])
def test_the_largest_frame_is_allowed_and_one_byte_more_is_not(excess: int) -> None:
    async def check(world: World) -> None:
        body = entry(LEDGER, 0, bytes(2000 - 28 - 32 + excess))
        frame = V2.add(LEDGER, 0, body)
        assert len(frame) == 2000 + excess
        world.client.send(frame)
        if excess:
            await world.client.closed()
        else:
            assert V2.answer(await world.client.frame()) == Answer(OK, LEDGER, 0)
            assert (await world.client.read(V2, LEDGER, 0)).body == body

    with_bookie(check, settings=bookie_settings(server=ServerSettings(frame_bytes_max=2000)))


def test_a_client_that_leaves_within_a_frame_leaves_nothing() -> None:
    async def check(world: World) -> None:
        for cut in (1, 3, 4, 5, 20):
            client = await world.connect()
            client.send(V2.add(LEDGER, 0)[:cut])
            await world.until(lambda: bool(world.service.half_frames))
            client.transport.close()
            await world.until(lambda: not world.service.half_frames)
        assert world.service._half_bytes == 0
        assert (await world.client.read(V2, LEDGER, 0)).status is Status.ENOLEDGER

    with_bookie(check)
