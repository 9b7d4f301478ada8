"""Packets of version 2: Apache's bytes both ways, and any bytes at all."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import INT32, INT64, damaged, many_examples, some_examples
from tests.support.wire_vectors import ENTRY, ENTRY_CRC32C, LAST, LEDGER, MASTER_KEY, body
from tests.unit.codec.wire.strategies import BODIES, ENTRIES, KEYS, LEDGERS, STATUSES, decoded_or_refused

from quire.codec.wire import v2
from quire.codec.wire.codes import Status
from quire.codec.wire.v3_messages import AUTH_DISABLED_PLUGIN, AuthMessage
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import NO_ENTRY, EntryId, LedgerId

ADD_FLAGS = v2.RECOVERY_ADD | v2.HIGH_PRIORITY
DECODERS: list[Callable[[memoryview], object]] = [
    v2.decode_header,
    v2.decode_add_request,
    v2.decode_read_request,
    v2.decode_batch_read_request,
    v2.decode_auth,
    v2.decode_add_response,
    v2.decode_read_response,
    v2.decode_batch_read_response,
]
ENTRY_VIEW = memoryview(ENTRY_CRC32C)
PACKETS = [frame[4:] for frame in (*vectors.REQUESTS, *vectors.RESPONSES) if frame[4] == 2]


def add_frame(key: bytes, entry: bytes, flags: int = 0) -> bytes:
    return v2.add_request_prefix(key, entry_bytes=len(entry), flags=flags) + entry


def read_frame(status: Status, ledger_id: LedgerId, entry_id: EntryId, entry: bytes = b"") -> bytes:
    return v2.read_response_prefix(status, ledger_id, entry_id, entry_bytes=len(entry)) + entry


# --- Apache's bytes


def test_an_add_request() -> None:
    assert add_frame(MASTER_KEY, ENTRY_CRC32C) == vectors.V2_ADD
    assert v2.decode_header(body(vectors.V2_ADD)) == (2, v2.ADD_ENTRY, 0)
    assert v2.decode_add_request(body(vectors.V2_ADD)) == (0, MASTER_KEY, LEDGER, ENTRY, NO_ENTRY, ENTRY_VIEW)


def test_an_add_request_of_recovery() -> None:
    frame = add_frame(MASTER_KEY, ENTRY_CRC32C, ADD_FLAGS)
    assert frame == vectors.V2_ADD[:4] + vectors.V2_RECOVERY_ADD_STARTS + vectors.V2_ADD[8:]
    assert v2.decode_header(body(frame)) == (2, v2.ADD_ENTRY, ADD_FLAGS)
    assert v2.decode_add_request(body(frame))[0] == ADD_FLAGS


@pytest.mark.parametrize(
    ("frame", "status"),
    [(vectors.V2_ADD_OK, Status.EOK), (vectors.V2_ADD_FENCED, Status.EFENCED)],
    ids=["ok", "fenced"],
)
def test_answers_to_adds(frame: bytes, status: Status) -> None:
    assert v2.encode_add_response(status, LEDGER, ENTRY) == frame
    assert v2.decode_header(body(frame)) == (2, v2.ADD_ENTRY, 0)
    assert v2.decode_add_response(body(frame)) == (status, LEDGER, ENTRY)


def test_read_requests() -> None:
    assert v2.encode_read_request(LEDGER, ENTRY) == vectors.V2_READ
    assert v2.decode_read_request(body(vectors.V2_READ)) == (0, LEDGER, ENTRY, None)
    fence = v2.encode_read_request(LEDGER, LAST, flags=v2.DO_FENCING, master_key=MASTER_KEY)
    assert fence == vectors.V2_FENCE
    assert v2.decode_read_request(body(vectors.V2_FENCE)) == (v2.DO_FENCING, LEDGER, LAST, MASTER_KEY)


def test_answers_to_reads() -> None:
    assert read_frame(Status.EOK, LEDGER, ENTRY, ENTRY_CRC32C) == vectors.V2_READ_OK
    assert v2.decode_read_response(body(vectors.V2_READ_OK)) == (Status.EOK, LEDGER, ENTRY, ENTRY_VIEW)
    assert read_frame(Status.ENOENTRY, LEDGER, ENTRY) == vectors.V2_READ_NO_ENTRY
    assert v2.decode_read_response(body(vectors.V2_READ_NO_ENTRY)) == (Status.ENOENTRY, LEDGER, ENTRY, None)


def test_a_batch_read_request() -> None:
    frame = v2.encode_batch_read_request(LEDGER, ENTRY, 9, entries_max=10, bytes_max=1024 * 1024)
    assert frame == vectors.V2_BATCH
    assert v2.decode_header(body(frame)) == (2, v2.BATCH_READ_ENTRY, 0)
    assert v2.decode_batch_read_request(body(frame)) == (0, LEDGER, ENTRY, 9, 10, 1024 * 1024, None)


def test_answers_to_batch_reads() -> None:
    parts = v2.batch_read_response_parts(Status.EOK, LEDGER, ENTRY, 9, [ENTRY_CRC32C])
    assert b"".join(parts) == vectors.V2_BATCH_OK
    assert parts[-1] is ENTRY_CRC32C
    expected = (Status.EOK, LEDGER, ENTRY, 9, [ENTRY_VIEW])
    assert v2.decode_batch_read_response(body(vectors.V2_BATCH_OK)) == expected
    parts = v2.batch_read_response_parts(Status.ENOLEDGER, LEDGER, ENTRY, 9)
    assert b"".join(parts) == vectors.V2_BATCH_NO_LEDGER
    expected = (Status.ENOLEDGER, LEDGER, ENTRY, 9, [])
    assert v2.decode_batch_read_response(body(vectors.V2_BATCH_NO_LEDGER)) == expected


def test_an_auth_packet() -> None:
    message = AuthMessage(AUTH_DISABLED_PLUGIN)
    assert v2.encode_auth(message) == vectors.V2_AUTH
    assert v2.decode_header(body(vectors.V2_AUTH)) == (2, v2.AUTH, 0)
    assert v2.decode_auth(body(vectors.V2_AUTH)) == message


def test_a_batch_costs_what_the_size_limit_assumes() -> None:
    sizes = [len(b"".join(v2.batch_read_response_parts(Status.EOK, LEDGER, ENTRY, 9, [b""] * n))) for n in (0, 1, 3)]
    assert sizes == [v2.BATCH_ENVELOPE_BYTES + n * v2.BATCH_ENTRY_BYTES for n in (0, 1, 3)]


# --- Round trips

FLAGS = st.integers(0, 0xFFFF)


@some_examples
@given(KEYS, LEDGERS, ENTRIES, ENTRIES, BODIES, FLAGS)
def test_adds_are_read_back(
    key: bytes, ledger: LedgerId, entry: EntryId, lac: EntryId, rest: bytes, flags: int
) -> None:
    ids = b"".join(number.to_bytes(8, "big", signed=True) for number in (ledger, entry, lac))
    frame = add_frame(key, ids + rest, flags)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert v2.decode_add_request(body(frame)) == (flags, key, ledger, entry, lac, memoryview(ids + rest))


@some_examples
@given(STATUSES, LEDGERS, ENTRIES, st.integers(0, 255))
def test_answers_to_adds_are_read_back(status: Status, ledger: LedgerId, entry: EntryId, version: int) -> None:
    frame = v2.encode_add_response(status, ledger, entry, version=version)
    told = Status.EIO if status is Status.EUNKNOWNLEDGERSTATE else status
    assert v2.decode_header(body(frame)) == (version, v2.ADD_ENTRY, 0)
    assert v2.decode_add_response(body(frame)) == (told, ledger, entry)


@some_examples
@given(LEDGERS, ENTRIES, FLAGS, KEYS)
def test_reads_are_read_back(ledger: LedgerId, entry: EntryId, flags: int, key: bytes) -> None:
    sent = key if flags & v2.DO_FENCING else None
    frame = v2.encode_read_request(ledger, entry, flags=flags, master_key=sent)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert v2.decode_read_request(body(frame)) == (flags, ledger, entry, sent)


@some_examples
@given(STATUSES, LEDGERS, ENTRIES, BODIES)
def test_answers_to_reads_are_read_back(status: Status, ledger: LedgerId, entry: EntryId, data: bytes) -> None:
    data = data if status is Status.EOK else b""
    frame = read_frame(status, ledger, entry, data)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    if status is Status.EOK:
        assert v2.decode_read_response(body(frame)) == (status, ledger, entry, memoryview(data))
    else:
        told = Status.EIO if status is Status.EUNKNOWNLEDGERSTATE else status
        assert v2.decode_read_response(body(frame)) == (told, ledger, entry, None)


@some_examples
@given(LEDGERS, ENTRIES, INT64, INT32, INT64, FLAGS, KEYS)
def test_batch_reads_are_read_back(
    ledger: LedgerId, entry: EntryId, request_id: int, entries_max: int, bytes_max: int, flags: int, key: bytes
) -> None:
    sent = key if flags & v2.DO_FENCING else None
    frame = v2.encode_batch_read_request(
        ledger, entry, request_id, entries_max=entries_max, bytes_max=bytes_max, flags=flags, master_key=sent
    )
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    expected = (flags, ledger, entry, request_id, entries_max, bytes_max, sent)
    assert v2.decode_batch_read_request(body(frame)) == expected


@some_examples
@given(LEDGERS, ENTRIES, INT64, st.lists(BODIES, max_size=4))
def test_batches_are_read_back(ledger: LedgerId, entry: EntryId, request_id: int, entries: list[bytes]) -> None:
    frame = b"".join(v2.batch_read_response_parts(Status.EOK, ledger, entry, request_id, entries))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert v2.decode_batch_read_response(body(frame)) == (
        Status.EOK,
        ledger,
        entry,
        request_id,
        [memoryview(data) for data in entries],
    )


@some_examples
@given(st.text(max_size=10), BODIES, st.integers(0, 255))
def test_auth_packets_are_read_back(plugin: str, payload: bytes, version: int) -> None:
    frame = v2.encode_auth(AuthMessage(plugin, payload), version=version)
    assert v2.decode_header(body(frame)) == (version, v2.AUTH, 0)
    assert v2.decode_auth(body(frame)) == AuthMessage(plugin, payload)


# --- Old and new versions


def test_version_0_has_its_opcode_in_the_last_byte_and_no_flags() -> None:
    packet = memoryview(bytes.fromhex("00000002 0000000000000001 0000000000000000"))
    assert v2.decode_header(packet) == (0, v2.READ_ENTRY, 0)
    assert v2.decode_read_request(packet) == (0, LEDGER, ENTRY, None)
    answer = v2.encode_add_response(Status.EOK, LEDGER, ENTRY, version=0)
    assert answer[4:8] == bytes.fromhex("00000001")


def test_version_1_cannot_fence() -> None:
    """The bit had no meaning yet, so no key follows it."""
    packet = memoryview(bytes.fromhex("01020001 0000000000000001 0000000000000000"))
    assert v2.decode_header(packet) == (1, v2.READ_ENTRY, 1)
    assert v2.decode_read_request(packet) == (1, LEDGER, ENTRY, None)


def test_a_later_version_can_be_told_that_it_is_not_spoken() -> None:
    """EBADVERSION has to repeat the ids, so the packet must be read all the same."""
    packet = b"\x05" + vectors.V2_ADD[5:]
    assert v2.decode_header(memoryview(packet)) == (5, v2.ADD_ENTRY, 0)
    assert v2.decode_add_request(memoryview(packet))[2:4] == (LEDGER, ENTRY)
    answer = v2.encode_add_response(Status.EBADVERSION, LEDGER, ENTRY, version=5)
    assert answer == bytes.fromhex("00000018 05010000 00000067 0000000000000001 0000000000000000")


def test_what_follows_a_request_is_ignored() -> None:
    """As Java's bookies do, except behind an entry, which takes all that is left."""
    for frame, decode in ((vectors.V2_READ, v2.decode_read_request), (vectors.V2_FENCE, v2.decode_read_request)):
        assert decode(memoryview(frame[4:] + b"later")) == decode(body(frame))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_answer_says_107(version: int) -> None:
    status = Status.EUNKNOWNLEDGERSTATE
    answers = [
        v2.encode_add_response(status, LEDGER, ENTRY, version=version),
        v2.read_response_prefix(status, LEDGER, ENTRY, version=version),
        b"".join(v2.batch_read_response_parts(status, LEDGER, ENTRY, 9, version=version)),
    ]
    assert [int.from_bytes(answer[8:12], "big") for answer in answers] == [101] * 3
    assert [v2.decode_header(body(answer))[0] for answer in answers] == [version] * 3


# --- What is wrong


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 255])
def test_an_opcode_without_a_packet_is_refused(opcode: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"opcode {opcode}$"):
        v2.decode_header(memoryview(bytes([2, opcode, 0, 0])))


@pytest.mark.parametrize("entry_bytes", [16, 23])
def test_an_entry_without_a_lac_reaches_the_bookie_which_refuses_it(entry_bytes: int) -> None:
    frame = add_frame(MASTER_KEY, ENTRY_CRC32C[:entry_bytes])
    expected = (0, MASTER_KEY, LEDGER, ENTRY, NO_ENTRY, ENTRY_VIEW[:entry_bytes])
    assert v2.decode_add_request(body(frame)) == expected


@pytest.mark.parametrize("decode", DECODERS, ids=lambda decode: decode.__name__)
def test_what_is_too_short_is_refused(decode: Callable[[memoryview], object]) -> None:
    with pytest.raises(ProtocolViolation):
        decode(memoryview(b"\x02\x01\x00"))
    assert v2.decode_add_response(body(vectors.V2_ADD_OK)[:24])[0] is Status.EOK
    with pytest.raises(ProtocolViolation, match="an add response does not fit into 23 bytes"):
        v2.decode_add_response(body(vectors.V2_ADD_OK)[:23])


def test_a_fence_without_its_key_is_refused() -> None:
    for packet, decode in (
        (body(vectors.V2_FENCE), v2.decode_read_request),
        (memoryview(b"\x02\x07\x00\x01" + vectors.V2_BATCH[8:] + bytes(20)), v2.decode_batch_read_request),
    ):
        assert decode(packet)[-1] is not None
        with pytest.raises(ProtocolViolation, match="fencing"):
            decode(packet[:-1])


@pytest.mark.parametrize("code", ["00000003", "0000006c", "ffffffff"])
def test_a_code_without_a_meaning_is_refused(code: str) -> None:
    packet = memoryview(bytes.fromhex("02010000" + code) + bytes(24))
    for decode in (v2.decode_add_response, v2.decode_read_response, v2.decode_batch_read_response):
        with pytest.raises(ProtocolViolation, match="response code"):
            decode(packet)


@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ("00", "ends within the size of its entry 0"),
        ("00000001 ff 000000", "ends within the size of its entry 1"),
        ("00000001", "entry 0 of a batch claims 1 bytes, 0 are left"),
        ("ffffffff", "entry 0 of a batch claims -1 bytes, 0 are left"),
        ("7fffffff 00", "entry 0 of a batch claims 2147483647 bytes, 1 are left"),
        ("00000001 00 00000002 ff", "entry 1 of a batch claims 2 bytes, 1 are left"),
    ],
)
def test_a_batch_that_ends_within_an_entry_is_refused(rest: str, complaint: str) -> None:
    packet = memoryview(vectors.V2_BATCH_NO_LEDGER[4:8] + bytes(4 + 24) + bytes.fromhex(rest))
    with pytest.raises(ProtocolViolation, match=complaint):
        v2.decode_batch_read_response(packet)


@pytest.mark.parametrize(
    "encode",
    [
        lambda: v2.add_request_prefix(MASTER_KEY[:19], entry_bytes=1),
        lambda: v2.add_request_prefix(MASTER_KEY, entry_bytes=2**32),
        lambda: v2.add_request_prefix(MASTER_KEY, entry_bytes=1, flags=0x10000),
        lambda: v2.encode_read_request(LedgerId(2**63), ENTRY),
        lambda: v2.encode_read_request(LEDGER, ENTRY, flags=v2.DO_FENCING),
        lambda: v2.encode_read_request(LEDGER, ENTRY, flags=v2.DO_FENCING, master_key=b"short"),
        lambda: v2.encode_read_request(LEDGER, ENTRY, master_key=MASTER_KEY),
        lambda: v2.encode_batch_read_request(LEDGER, ENTRY, 1, entries_max=2**31, bytes_max=1),
        lambda: v2.encode_batch_read_request(LEDGER, ENTRY, 1, entries_max=1, bytes_max=1, master_key=MASTER_KEY),
        lambda: v2.encode_add_response(Status.EOK, LEDGER, EntryId(-(2**63) - 1)),
        lambda: v2.encode_add_response(Status.EOK, LEDGER, ENTRY, version=256),
        lambda: v2.read_response_prefix(Status.EIO, LEDGER, ENTRY, entry_bytes=1),
        lambda: v2.read_response_prefix(Status.EOK, LedgerId(2**63), ENTRY),
        lambda: v2.batch_read_response_parts(Status.EIO, LEDGER, ENTRY, 1, [b"x"]),
        lambda: v2.batch_read_response_parts(Status.EOK, LEDGER, ENTRY, 2**63),
        lambda: v2.encode_auth(AuthMessage("\ud800")),
    ],
)
def test_what_a_packet_cannot_hold_is_not_written(encode: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        encode()


@many_examples
@given(st.one_of(st.binary(max_size=80), damaged(st.sampled_from(PACKETS))))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for decode in DECODERS:
        decoded_or_refused(decode, data)


@pytest.mark.parametrize("packet", PACKETS, ids=lambda packet: packet[:8].hex())
def test_any_beginning_of_a_packet_is_read_or_refused(packet: bytes) -> None:
    for end in range(len(packet)):
        for decode in DECODERS:
            decoded_or_refused(decode, packet[:end])
