"""Frames: the same however their bytes arrive, never more memory than for one, and an end at the first bad one."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import many_examples, some_examples
from tests.unit.codec.wire.strategies import chunked

from quire.codec.digest import digest_for
from quire.codec.entry import EntryCodec
from quire.codec.wire import frames, v2, v3, v3_adds
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import FRAME_BYTES_MAX, FrameSplitter, payload_bytes_max, protocol_version
from quire.codec.wire.v3_messages import HIGH_PRIORITY, ReadResponse
from quire.errors import InvalidArgument, Outcome, ProtocolViolation
from quire.types import DigestType, EntryId, LedgerId

LIMIT = 24  # Small, so that random bytes hit it from both sides.


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


def split_all(splitter: FrameSplitter, chunks: list[bytes]) -> tuple[list[bytes], str | None]:
    """All frames of a connection, and the complaint that ended it."""
    frames: list[bytes] = []
    try:
        for chunk in chunks:
            for frame in splitter.split(chunk):
                frames.append(bytes(frame))  # noqa: PERF401 - what came before a violation counts.
    except ProtocolViolation as violation:
        return frames, str(violation)
    return frames, None


STREAMS = st.one_of(
    st.lists(st.binary(min_size=1, max_size=LIMIT - 4), max_size=6).map(lambda bodies: framed(*bodies)),
    st.builds(
        lambda bodies, rest: framed(*bodies) + rest,
        st.lists(st.binary(min_size=1, max_size=LIMIT - 4), max_size=4),
        st.one_of(st.binary(max_size=12), st.integers(0, 2 * LIMIT).map(lambda length: length.to_bytes(4, "big"))),
    ),
)


def test_apaches_frames_come_out_as_they_went_in() -> None:
    frames = [*vectors.REQUESTS, *vectors.RESPONSES]
    splitter = FrameSplitter()
    assert split_all(splitter, [b"".join(frames)]) == ([frame[4:] for frame in frames], None)
    assert splitter.pending_bytes == 0


@many_examples
@given(chunked(STREAMS))
@example((framed(b"a") + bytes(4), [framed(b"a") + bytes(2), bytes(2)]))
def test_frames_do_not_depend_on_chunks(stream: tuple[bytes, list[bytes]]) -> None:
    """Neither do the complaint about a bad frame, and the frames before it."""
    data, chunks = stream
    whole, cut, single = (FrameSplitter(frame_bytes_max=LIMIT) for _ in range(3))
    expected = split_all(whole, [data])
    assert split_all(cut, chunks) == expected
    assert split_all(single, [data[at : at + 1] for at in range(len(data))]) == expected
    assert cut.pending_bytes == single.pending_bytes == whole.pending_bytes


@many_examples
@given(st.lists(st.binary(max_size=3 * LIMIT), max_size=8))
def test_never_more_than_one_frame_is_waiting(chunks: list[bytes]) -> None:
    splitter = FrameSplitter(frame_bytes_max=LIMIT)
    for chunk in chunks:
        frames, complaint = split_all(splitter, [chunk])
        assert all(0 < len(frame) <= LIMIT - 4 for frame in frames)
        assert splitter.pending_bytes < LIMIT
        assert complaint is None or splitter.pending_bytes == 0


def test_a_half_frame_costs_its_size_however_small_its_pieces() -> None:
    """A peer that sends byte by byte must not make us keep an object for each piece."""
    limit = 100_000
    splitter = FrameSplitter(frame_bytes_max=limit)
    frame = framed(bytes(limit - 4))
    tracemalloc.start()
    try:
        for at in range(0, limit - 10, 10):
            assert list(splitter.split(frame[at : at + 10])) == []
        taken = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    assert splitter.pending_bytes == limit - 10
    here = [tracemalloc.Filter(True, file) for file in (__file__, frames.__file__)]  # Not in other threads.
    assert (
        limit <= sum(trace.size for trace in taken.filter_traces(here).traces) < 1.5 * limit
    )  # A buffer with room to grow.
    assert [len(body) for body in splitter.split(frame[-10:])] == [limit - 4]


def test_whole_frames_are_views_into_what_arrived() -> None:
    data = framed(b"one", b"three") + b"\0"
    assert [frame.obj is data for frame in FrameSplitter().split(data)] == [True, True]


def test_a_frame_stays_as_it_is_while_others_follow() -> None:
    """The frame that was put together from pieces must not share its buffer with the next half."""
    splitter = FrameSplitter()
    data = framed(b"first", b"second")
    assert list(splitter.split(data[:6])) == []
    (first,) = splitter.split(data[6:12])
    (second,) = splitter.split(data[12:])
    assert (bytes(first), bytes(second)) == (b"first", b"second")


def test_the_limit_counts_the_length_too() -> None:
    (largest,) = FrameSplitter(frame_bytes_max=LIMIT).split(framed(bytes(LIMIT - 4)))
    assert len(largest) == LIMIT - 4
    with pytest.raises(ProtocolViolation, match=f"{LIMIT + 1} bytes exceeds the limit of {LIMIT}") as caught:
        list(FrameSplitter(frame_bytes_max=LIMIT).split((LIMIT - 3).to_bytes(4, "big")))
    assert caught.value.facts == {"length": LIMIT - 3, "frame_bytes_max": LIMIT}
    assert caught.value.outcome is Outcome.UNKNOWN
    assert FRAME_BYTES_MAX == 5242880


def test_the_length_is_unsigned() -> None:
    with pytest.raises(ProtocolViolation, match="a frame of 4294967299 bytes"):
        list(FrameSplitter().split(b"\xff\xff\xff\xff"))


def test_an_empty_frame_is_refused_after_the_frames_before_it() -> None:
    splitter = FrameSplitter()
    frames = splitter.split(framed(b"good", b"", b"lost"))
    assert bytes(next(frames)) == b"good"
    with pytest.raises(ProtocolViolation, match="no bytes"):
        next(frames)


def test_nothing_is_understood_after_a_bad_frame() -> None:
    splitter = FrameSplitter()
    for data in (framed(b""), framed(b"good"), b""):
        with pytest.raises(ProtocolViolation, match="no bytes"):
            list(splitter.split(data))
        assert splitter.pending_bytes == 0


def test_a_limit_must_leave_room_for_a_body() -> None:
    with pytest.raises(InvalidArgument):
        FrameSplitter(frame_bytes_max=4)


@pytest.mark.parametrize("frame", [*vectors.REQUESTS, *vectors.RESPONSES], ids=lambda frame: frame[4:14].hex())
def test_the_first_byte_tells_the_versions_apart(frame: bytes) -> None:
    expected = 3 if frame[4] == 0x0A else 2
    assert protocol_version(vectors.body(frame)) == expected
    assert {protocol_version(vectors.body(known)) for known in (vectors.V2_ADD, vectors.V3_ADD)} == {2, 3}


def test_a_packet_of_an_unknown_version_is_no_protobuf() -> None:
    """It is version 2's business to say EBADVERSION."""
    assert [protocol_version(memoryview(bytes([first]))) for first in (0, 1, 2, 3, 9, 11, 255)] == [2] * 7


@some_examples
@given(st.sampled_from(DigestType), st.integers(2000, 5000))
def test_the_largest_payload_fits_into_every_frame_around_it(digest_type: DigestType, limit: int) -> None:
    digest = digest_for(digest_type, b"")
    payload = bytes(payload_bytes_max(digest_bytes=digest.size, frame_bytes_max=limit))
    ledger, entry, key = LedgerId(2**63 - 1), EntryId(2**63 - 1), bytes(20)
    whole = EntryCodec(ledger, digest).prefix(entry, payload, lac=EntryId(-1), length=2**63 - 1) + payload
    before, after = v3_adds.add_request_parts(
        2**64 - 1, ledger, entry, key, entry_bytes=len(whole), write_flags=-1, recovery=True, priority=HIGH_PRIORITY
    )
    response = ReadResponse(ledger, entry, whole, max_lac=EntryId(-1), lac_updated_ms=-1)
    frames = [
        v2.add_request_prefix(key, entry_bytes=len(whole)) + whole,
        v2.read_response_prefix(Status.EOK, ledger, entry, entry_bytes=len(whole)) + whole,
        b"".join(v2.batch_read_response_parts(Status.EOK, ledger, entry, 0, [whole])),
        before + whole + after,
        v3.encode_response(2**64 - 1, Status.EOK, response),
    ]
    assert split_all(FrameSplitter(frame_bytes_max=limit), frames) == ([frame[4:] for frame in frames], None)


def test_a_limit_without_room_for_a_payload_says_so() -> None:
    assert payload_bytes_max(digest_bytes=20, frame_bytes_max=100) == 0
    assert payload_bytes_max(digest_bytes=4) == 5242880 - 512 - 32 - 4
