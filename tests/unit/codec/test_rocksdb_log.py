"""Logs that are whole, torn or broken, and those that RocksDB's own reader must not see.

That these are RocksDB's own bytes is shown in tests/integration/bookie/test_rocks_index.py, on files it wrote.
"""

import struct

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples, some_examples

from quire.codec.rocksdb_log import LogState, log_state

BLOCK = 32 * 1024


def record(kind: int, payload: bytes) -> bytes:
    crc = google_crc32c.value(bytes([kind]) + payload)
    masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    return struct.pack("<IHB", masked, len(payload), kind) + payload


def log_of(*payloads: bytes) -> bytes:
    """A log as RocksDB writes it: payloads are cut where a block ends."""
    log = bytearray()
    for payload in payloads:
        rest, first = payload, True
        while rest or first:
            left = BLOCK - len(log) % BLOCK
            if left < 7:
                log += bytes(left)
                continue
            part, rest = rest[: left - 7], rest[left - 7 :]
            kind = (1 if first else 4) if not rest else (2 if first else 3)
            log += record(kind, part)
            first = False
    return bytes(log)


def starts_of(log: bytes) -> list[int]:
    """Where records begin."""
    starts, at = [], 0
    while at < len(log):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        starts.append(at)
        at += 7 + struct.unpack_from("<H", log, at + 4)[0]
    return starts


payloads = st.lists(
    st.one_of(st.binary(max_size=40), st.integers(0, 3 * BLOCK).map(lambda size: b"\x01x" * (size // 2))),
    min_size=1,
    max_size=8,
)
SMALL = log_of(b"one", b"two" * 10, b"three" * 20)
LARGE = log_of(*(b"%d" % number * 5000 for number in range(10, 30)))


@some_examples
@given(payloads)
def test_what_was_written_is_whole(written: list[bytes]) -> None:
    assert log_state(log_of(*written)) is LogState.WHOLE


@pytest.mark.parametrize("room", range(14))
def test_a_record_that_ends_near_the_end_of_a_block_is_no_damage(room: int) -> None:
    assert log_state(log_of(b"x" * (BLOCK - 7 - room), b"next", b"last")) is LogState.WHOLE


def test_an_empty_log_is_whole() -> None:
    assert log_state(b"") is LogState.WHOLE


@many_examples
@given(st.data())
def test_a_log_cut_anywhere_is_whole_or_torn(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from([SMALL, LARGE]))
    cut = data.draw(st.integers(0, len(log)))
    state = log_state(log[:cut])
    assert state in (LogState.WHOLE, LogState.TORN)
    if log is SMALL:
        assert (state is LogState.WHOLE) == (cut in (*starts_of(log), len(log)))


@many_examples
@given(st.data())
def test_a_log_that_ends_in_zeros_is_torn(data: st.DataObject) -> None:
    log = data.draw(st.sampled_from([SMALL, LARGE]))
    cut = data.draw(st.sampled_from(starts_of(log)))
    zeros = data.draw(st.integers(7, 3 * BLOCK))
    assert log_state(log[:cut] + bytes(zeros)) is LogState.TORN


@pytest.mark.parametrize("log", [SMALL, LARGE], ids=["small", "large"])
def test_a_flipped_bit_is_never_overlooked(log: bytes) -> None:
    """In all bits of all headers and the first of the payloads. Only the last record's length could have been cut."""
    starts = starts_of(log)
    for start in starts:
        for bit in range(8 * 9):
            flipped = bytearray(log)
            flipped[start + bit // 8] ^= 1 << bit % 8
            state = log_state(bytes(flipped))
            if start == starts[-1] and bit // 8 in (4, 5):
                assert state in (LogState.BROKEN, LogState.TORN)
            elif bit // 8 == 6 and bit % 8 >= 3:
                assert state is LogState.FOREIGN
            else:
                assert state in (LogState.BROKEN, LogState.FOREIGN)


def test_a_kind_that_makes_rocksdb_turn_in_a_circle_is_foreign() -> None:
    """Also where the crc is right, and where RocksDB would only come to it because the block before is damaged."""
    for kind in (5, 6, 7, 8, 9, 130, 255):
        assert log_state(SMALL + record(kind, b"payload")) is LogState.FOREIGN
        later = bytearray(LARGE)
        later[100] ^= 1
        later[2 * BLOCK + 6] = kind
        assert log_state(bytes(later)) is LogState.FOREIGN


def test_a_hole_of_zeros_is_broken_if_anything_follows() -> None:
    for start, end in ((4096, 8192), (BLOCK, 2 * BLOCK), (5000, 3 * BLOCK)):
        holed = bytearray(LARGE)
        holed[start:end] = bytes(end - start)
        assert log_state(bytes(holed)) is LogState.BROKEN


@pytest.mark.parametrize("kinds", [(3,), (4,), (2, 1), (2, 2), (1, 4), (2, 4, 3)])
def test_parts_that_do_not_belong_together_are_broken(kinds: tuple[int, ...]) -> None:
    assert log_state(b"".join(record(kind, b"part") for kind in kinds)) is LogState.BROKEN


def test_a_payload_without_its_last_part_is_torn() -> None:
    assert log_state(record(1, b"whole") + record(2, b"first") + record(3, b"middle")) is LogState.TORN


@many_examples
@given(st.binary(max_size=200))
def test_any_bytes_have_a_state(log: bytes) -> None:
    assert log_state(log) in LogState
    assert log_state(SMALL + log) in LogState
