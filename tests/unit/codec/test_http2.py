"""Frames and headers of HTTP/2: what is written can be read, by us and by the library `hpack`, however it is cut."""

from itertools import pairwise

import pytest
from hpack import Decoder
from hypothesis import given
from hypothesis import strategies as st

from quire.codec import http2
from quire.codec.http2 import Frames, Http2Violation

texts = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=300)
names = st.text("abcdefghijklmnopqrstuvwxyz-", min_size=1, max_size=30)
written_frames = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 255), st.integers(0, http2.STREAM_ID_MAX), st.binary(max_size=200)),
    max_size=10,
)


def test_only_the_last_value_of_a_setting_counts_and_a_frame_has_few_of_them() -> None:
    [(_, _, _, payload)] = Frames().feed(http2.settings_frame([(4, value) for value in range(http2.SETTINGS_MAX)]))
    assert http2.settings_of(payload) == {4: http2.SETTINGS_MAX - 1}
    with pytest.raises(Http2Violation) as found:
        http2.settings_of(payload + payload[:6])
    assert found.value.code == http2.ENHANCE_YOUR_CALM


def test_what_is_kept_of_a_frame_is_what_arrived_of_it() -> None:
    """Byte by byte: before its header is whole, behind it, and once it is out."""
    frames, whole = Frames(), http2.frame(http2.DATA, 0, 1, b"hello")
    for count, byte in enumerate(whole[:-1], start=1):
        assert list(frames.feed(bytes([byte]))) == []
        assert frames.kept_bytes == count
    assert list(frames.feed(whole[-1:] + whole[:3])) == [(http2.DATA, 0, 1, b"hello")]
    assert frames.kept_bytes == 3


@given(written_frames, st.lists(st.integers(0, 3000)))
def test_frames_come_out_whole_however_they_arrive(written: list[tuple[int, int, int, bytes]], cuts: list[int]) -> None:
    data = b"".join(http2.frame(*each) for each in written)
    places = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    frames, read = Frames(), []
    for start, end in pairwise(places):
        read += list(frames.feed(data[start:end]))
    assert read == written


def test_a_frame_larger_than_we_allow_is_a_violation_before_it_is_there() -> None:
    largest = http2.frame(http2.DATA, 0, 1, bytes(http2.FRAME_BYTES_TAKEN))
    assert len(list(Frames().feed(largest))) == 1
    with pytest.raises(Http2Violation) as found:
        list(Frames().feed((http2.FRAME_BYTES_TAKEN + 1).to_bytes(3, "big") + bytes(6)))
    assert found.value.code == http2.FRAME_SIZE_ERROR


@given(st.lists(st.tuples(names, texts), max_size=10))
def test_headers_can_be_read_with_and_without_a_table(headers: list[tuple[str, str]]) -> None:
    block = http2.headers_block(headers)
    assert [(str(name), str(value)) for name, value in Decoder().decode(block)] == headers
    plain = http2.plain_headers(block)
    if all(len(value) < 127 for _, value in headers):
        assert plain == dict(headers)
    else:
        assert plain in (None, dict(headers))


@given(st.binary(max_size=200))
def test_headers_of_other_kinds_are_left_to_the_table(block: bytes) -> None:
    """Never an exception; and what it takes for plain, the library reads in the same way."""
    plain = http2.plain_headers(block)
    if plain is not None:
        assert {str(name): str(value) for name, value in Decoder().decode(block)} == plain


@given(texts.filter(bool), st.integers(1, 200))
def test_long_headers_are_spread_over_frames(value: str, times: int) -> None:
    block = http2.headers_block([("x", value * times)])
    parts = list(Frames().feed(http2.headers_frames(5, block, end_stream=True)))
    assert b"".join(payload for _, _, _, payload in parts) == block
    assert parts[0][0] == http2.HEADERS
    assert parts[0][1] & http2.END_STREAM
    assert [bool(flags & http2.END_HEADERS) for _, flags, _, _ in parts] == [*[False] * (len(parts) - 1), True]


@given(st.binary(max_size=100), st.integers(0, 50))
def test_padding_is_taken_off(body: bytes, padding: int) -> None:
    padded = bytes((padding,)) + body + bytes(padding)
    assert http2.without_padding(padded, http2.PADDED) == body
    assert http2.without_padding(body, 0) == body
    assert http2.without_padding(bytes(5) + body, http2.WITH_PRIORITY) == body


@pytest.mark.parametrize("payload", [b"", b"\x01", b"\x05abc"])
def test_more_padding_than_frame_is_a_violation(payload: bytes) -> None:
    with pytest.raises(Http2Violation):
        http2.without_padding(payload, http2.PADDED)


@given(st.binary(max_size=1000))
def test_a_message_in_one_frame_is_the_frame_and_its_prefix(body: bytes) -> None:
    data = http2.message_header(7, len(body), end_stream=True) + body
    [(type, flags, stream_id, payload)] = Frames().feed(data)
    assert (type, flags, stream_id) == (http2.DATA, http2.END_STREAM, 7)
    assert http2.prefix_of(payload) == (False, len(body))
    assert payload == http2.message_prefix(len(body)) + body


@given(st.lists(st.tuples(st.integers(0, 65_535), st.integers(0, 2**32 - 1)), max_size=http2.SETTINGS_MAX))
def test_settings_and_good_byes_can_be_read_again(settings: list[tuple[int, int]]) -> None:
    [(_, _, _, payload)] = Frames().feed(http2.settings_frame(settings))
    assert http2.settings_of(payload) == dict(settings)
    [(_, _, _, payload)] = Frames().feed(http2.goaway_frame(17, 3, "why"))
    assert http2.goaway_of(payload) == (17, 3)


@pytest.mark.parametrize("read", [http2.settings_of, http2.goaway_of, http2.number_of])
def test_payloads_of_a_wrong_size_are_violations(read: object) -> None:
    assert callable(read)
    with pytest.raises(Http2Violation):
        read(b"12345")
