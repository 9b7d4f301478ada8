"""The nodes of a stream: where Apache looks for them, and what single values they hold."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, decoded_or_damaged, many_examples, some_examples

from quire.codec.stream_metadata.tree import (
    StreamPaths,
    check_layout_version,
    decode_allocation,
    decode_max_lssn,
    decode_max_txid,
    decode_subscription,
    encode_allocation,
    encode_max_lssn,
    encode_max_txid,
    encode_subscription,
)
from quire.errors import DamagedMetadata, InvalidArgument, InvalidName
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

PATHS = StreamPaths("/dl", "orders")
DLSNS = st.builds(lambda a, b, c: DLSN(Lssn(a), EntryId(b), SlotId(c)), INT64, INT64, INT64)


def test_vector_m_a_new_stream_has_apaches_nodes_in_apaches_order() -> None:
    assert PATHS.initial_nodes() == [
        ("/dl/orders", b""),
        ("/dl/orders/<default>", b""),
        ("/dl/orders/<default>/maxtxid", b"0"),
        ("/dl/orders/<default>/version", b"\xff\xff\xff\xff"),
        ("/dl/orders/<default>/lock", b""),
        ("/dl/orders/<default>/readLock", b""),
        ("/dl/orders/<default>/ledgers", b"0"),
        ("/dl/orders/<default>/allocation", b""),
    ]
    assert PATHS.segment("logrecs_1") == "/dl/orders/<default>/ledgers/logrecs_1"
    assert PATHS.subscriber("me") == "/dl/orders/<default>/subscribers/me"
    assert PATHS.subscriber_lock("me") == "/dl/orders/<default>/subscribers/me/readLock"
    check_layout_version(dict(PATHS.initial_nodes())[PATHS.version])


def test_a_nested_stream_needs_the_nodes_above_it() -> None:
    assert PATHS.ancestors() == []
    nested = StreamPaths("/", "a/b/c")
    assert nested.ancestors() == ["/a", "/a/b"]
    assert nested.top == "/a/b/c"


@pytest.mark.parametrize("stream", ["", "/a", "a//b", ".a"])
def test_paths_are_made_from_normal_names_only(stream: str) -> None:
    with pytest.raises(InvalidName):
        StreamPaths("/dl", stream)


@pytest.mark.parametrize("subscriber", ["", "a/b", ".", ".."])
def test_a_subscriber_is_one_part_of_a_path(subscriber: str) -> None:
    with pytest.raises(InvalidName, match="cannot name a subscriber"):
        PATHS.subscriber_lock(subscriber)


@pytest.mark.parametrize("data", [b"", b"-1", b"\xff\xff\xff\xfe", b"\xff\xff\xff\xff\xff"])
def test_another_layout_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedMetadata, match="layout version of a stream"):
        check_layout_version(data)


def test_vector_m_numbers_are_plain_decimals() -> None:
    assert (encode_max_lssn(Lssn(1)), decode_max_lssn(b"1")) == (b"1", 1)
    assert (encode_max_txid(1002), decode_max_txid(b"1002")) == (b"1002", 1002)
    assert (encode_max_txid(-999), decode_max_txid(b"-999")) == (b"-999", -999)
    assert (encode_allocation(LedgerId(12345)), decode_allocation(b"12345")) == (b"12345", 12345)
    assert (encode_allocation(None), decode_allocation(b"")) == (b"", None)


@pytest.mark.parametrize(
    ("dlsn", "text"),
    [
        ((99, 88, 77), b"AQAAAAAAAABjAAAAAAAAAFgAAAAAAAAATQ=="),
        ((1, 0, 0), b"AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA=="),
        ((1, 0, -1), b"AQAAAAAAAAABAAAAAAAAAAD//////////w=="),
    ],
)
def test_vector_i_a_subscription_is_apaches(dlsn: tuple[int, int, int], text: bytes) -> None:
    position = DLSN(Lssn(dlsn[0]), EntryId(dlsn[1]), SlotId(dlsn[2]))
    assert encode_subscription(position) == text
    assert decode_subscription(text) == position


def test_vector_i_a_subscription_of_the_oldest_form_is_read() -> None:
    assert decode_subscription(b"AAAAAAAAAABjAAAAAAAAAFgAAAAAAAAATQ" + b"A" * 233 + b"=") == (99, 88, 77)


def test_a_subscriber_that_only_locked_has_no_position() -> None:
    assert decode_subscription(b"") is None


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_max_lssn, b""),
        (decode_max_lssn, b"-1"),
        (decode_max_lssn, b"1\n"),
        (decode_max_lssn, b"9223372036854775808"),
        (decode_max_txid, b""),
        (decode_max_txid, b" 1"),
        (decode_max_txid, b"\xff"),
        (decode_allocation, b"-1"),
        (decode_allocation, b"L1"),
        (decode_subscription, b"AQAAAAAAAABjAAAAAAAAAFgAAAAAAAAATQ="),
        (decode_subscription, b"99:88:77"),
        (decode_subscription, b"\xff"),
    ],
)
def test_a_broken_value_is_damaged(decode: Callable[[bytes], object], data: bytes) -> None:
    with pytest.raises(DamagedMetadata):
        decode(data)


def test_a_value_that_could_not_be_read_back_is_not_written() -> None:
    for number in (-1, 2**63):
        with pytest.raises(InvalidArgument):
            encode_max_lssn(Lssn(number))
        with pytest.raises(InvalidArgument):
            encode_allocation(LedgerId(number))
    with pytest.raises(InvalidArgument):
        encode_max_txid(2**63)


@some_examples
@given(st.integers(0, 2**63 - 1), INT64, DLSNS)
def test_what_was_written_is_read_back(number: int, txid: int, dlsn: DLSN) -> None:
    assert decode_max_lssn(encode_max_lssn(Lssn(number))) == number
    assert decode_allocation(encode_allocation(LedgerId(number))) == number
    assert decode_max_txid(encode_max_txid(txid)) == txid
    assert decode_subscription(encode_subscription(dlsn)) == dlsn


@many_examples
@given(st.one_of(st.binary(max_size=40), st.text("-0123456789=A", max_size=40).map(str.encode)))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    for decode in (decode_max_lssn, decode_max_txid, decode_allocation, decode_subscription):
        decoded_or_damaged(decode, data)
