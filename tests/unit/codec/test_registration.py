"""What bookies publish: Apache's own bytes, bookies that publish nothing, and any bytes at all."""

import pickle
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT32, damaged, decoded_or_damaged, many_examples, some_examples

from quire.codec import registration
from quire.codec.messages import write_binary
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.codec.registration import (
    BOOKIE_RPC,
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
    legacy_service_info,
)
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId

BK1 = BookieId("bk1:3181")
WITH_HTTP = BookieServiceInfo(
    (Endpoint("bookie", "bk1", 3181, "bookie-rpc"), Endpoint("httpserver", "0.0.0.0", 8080, "http"))
)
WITH_HTTP_BYTES = bytes.fromhex(
    "321c0a06626f6f6b696510ed181a03626b31220a626f6f6b69652d727063"
    "321e0a0a6874747073657276657210903f1a07302e302e302e30220468747470"
)
WITH_TLS = BookieServiceInfo((Endpoint("bookie", "bk1", 3181, "bookie-rpc", extensions=("tls",)),), {"k": "v"})
WITH_TLS_BYTES = bytes.fromhex("32210a06626f6f6b696510ed181a03626b31220a626f6f6b69652d7270633203746c733a060a016b120176")

SHORT_TEXT = st.text(max_size=6)
INFOS = st.builds(
    BookieServiceInfo,
    st.lists(
        st.builds(
            Endpoint,
            SHORT_TEXT,
            SHORT_TEXT,
            INT32,
            SHORT_TEXT,
            st.lists(SHORT_TEXT, max_size=2).map(tuple),
            st.lists(SHORT_TEXT, max_size=2).map(tuple),
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.dictionaries(SHORT_TEXT, SHORT_TEXT, max_size=3),
)

decode = partial(decode_service_info, bookie=BK1)


@pytest.mark.parametrize(
    ("info", "data", "size"), [(WITH_HTTP, WITH_HTTP_BYTES, 62), (WITH_TLS, WITH_TLS_BYTES, 43)], ids=["http", "tls"]
)
def test_apaches_bytes_are_written_and_read(info: BookieServiceInfo, data: bytes, size: int) -> None:
    assert len(data) == size
    assert encode_service_info(info) == data
    assert decode(data) == info


def test_clients_connect_to_the_endpoint_that_speaks_bookie_rpc() -> None:
    http, rpc = WITH_HTTP.endpoints[1], WITH_HTTP.endpoints[0]
    assert BookieServiceInfo((http, rpc)).rpc_endpoint == rpc
    assert BookieServiceInfo((http,)).rpc_endpoint is None


def test_a_bookie_that_publishes_nothing_is_reached_at_its_id() -> None:
    expected = BookieServiceInfo((Endpoint("bk1:3181", "bk1", 3181, "bookie-rpc"),))
    assert decode(b"") == expected
    assert legacy_service_info(BK1) == expected
    assert encode_service_info(BookieServiceInfo()) == b""


def test_an_info_can_be_sent_to_another_process() -> None:
    info = BookieServiceInfo((Endpoint("bookie", "host", 3181, BOOKIE_RPC),), {"rack": "/r1"})
    assert pickle.loads(pickle.dumps(info)) == info


def test_more_colons_in_a_legacy_id_are_ignored() -> None:
    """Apache's readers take the first two parts of the id, whatever follows."""
    endpoint = legacy_service_info(BookieId("bk1:3181:x")).rpc_endpoint
    assert endpoint is not None
    assert (endpoint.host, endpoint.port) == ("bk1", 3181)


@pytest.mark.parametrize("bookie", ["bookie-four", ":3181", "bk1:", "bk1:http", "bk1:65536", "bk1:-1"])
def test_a_bookie_that_publishes_nothing_needs_an_address_for_an_id(bookie: str) -> None:
    with pytest.raises(DamagedMetadata, match=bookie):
        decode_service_info(b"", BookieId(bookie))


@pytest.mark.parametrize("field", ["0a06626f6f6b6965", "10ed18", "1a03626b31", "220a626f6f6b69652d727063"])
def test_half_an_endpoint_is_refused(field: str) -> None:
    """Take each of the four required fields out of a whole endpoint in turn."""
    whole = WITH_HTTP_BYTES[2:30]
    body = whole.replace(bytes.fromhex(field), b"")
    assert len(body) < len(whole)
    with pytest.raises(DamagedMetadata, match=r"registration of bookie 'bk1:3181': endpoints\.\w+ is missing"):
        decode(b"\x32" + bytes([len(body)]) + body)


def test_unknown_fields_are_ignored() -> None:
    assert decode(WITH_HTTP_BYTES + bytes.fromhex("0801 a00607")) == WITH_HTTP


@pytest.mark.parametrize(
    "make",
    [
        lambda: Endpoint("bookie", "h", 2**31, "bookie-rpc"),
        lambda: Endpoint("\ud800", "h", 1, "bookie-rpc"),
        lambda: Endpoint("bookie", "h", 1, "bookie-rpc", extensions=("\ud800",)),
        lambda: BookieServiceInfo((), {"k": "\ud800"}),
    ],
)
def test_what_could_not_be_stored_cannot_be_made(make: object) -> None:
    assert callable(make)
    with pytest.raises(InvalidArgument):
        make()


def test_equal_infos_have_equal_hashes_and_cannot_be_changed() -> None:
    again = BookieServiceInfo(WITH_TLS.endpoints, dict(WITH_TLS.properties))
    assert again == WITH_TLS
    assert hash(again) == hash(WITH_TLS)
    with pytest.raises(TypeError):
        WITH_TLS.properties["k"] = "w"  # type: ignore[index]


@some_examples
@given(INFOS)
def test_what_was_written_is_read_back(info: BookieServiceInfo) -> None:
    assert decode(encode_service_info(info)) == info


@some_examples
@given(INFOS)
def test_the_bytes_are_those_of_googles_library(info: BookieServiceInfo) -> None:
    """But for the order of properties, which means nothing: ours is by name, and theirs depends on the release."""
    message = pb.BookieServiceInfoFormat(
        endpoints=[
            pb.BookieServiceInfoFormat.Endpoint(
                id=endpoint.id,
                port=endpoint.port,
                host=endpoint.host,
                protocol=endpoint.protocol,
                auth=endpoint.auth,
                extensions=endpoint.extensions,
            )
            for endpoint in info.endpoints
        ],
        properties=dict(info.properties),
    )
    ours, theirs = encode_service_info(info), write_binary(message)
    assert ours == theirs if len(info.properties) < 2 else len(ours) == len(theirs)
    assert pb.BookieServiceInfoFormat.FromString(ours) == message


@many_examples
@given(st.one_of(st.binary(), INFOS.map(encode_service_info), damaged(INFOS.map(encode_service_info))))
def test_what_is_read_without_the_library_is_what_it_reads(data: bytes) -> None:
    """Our own reader may give up on anything, but not see anything else in it."""
    try:
        plain = registration._decode_plain(data)
    except (ValueError, InvalidArgument):
        return
    assert registration._decode_any(data, BK1) == plain


def test_what_bookies_publish_is_read_without_the_library() -> None:
    assert registration._decode_plain(WITH_HTTP_BYTES) == WITH_HTTP
    assert registration._decode_plain(WITH_TLS_BYTES) == WITH_TLS


@many_examples
@given(st.one_of(st.binary(), damaged(INFOS.map(encode_service_info))))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    info = decoded_or_damaged(decode, data)
    if info is not None and encode_service_info(info):
        assert decode(encode_service_info(info)) == info
