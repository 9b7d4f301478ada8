"""Namespace bindings: Apache's bytes, what absent fields mean, and any bytes at all."""

import hashlib
import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import damaged, decoded_or_damaged, many_examples, some_examples

from quire.codec.stream_metadata.binding import NamespaceBinding, decode_binding, encode_binding
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import Lssn

SERVERS = "127.0.0.1:2181"
BOUND = NamespaceBinding(
    SERVERS,
    "/ledgers",
    bk_servers_for_reader=SERVERS,
    dl_servers_for_writer=SERVERS,
    dl_servers_for_reader=SERVERS,
)
VECTOR_K = (
    b'1\nBKDL\n{"1":{"str":"127.0.0.1:2181"},"2":{"str":"/ledgers"},"3":{"tf":1},"4":{"tf":0},'
    b'"5":{"str":"127.0.0.1:2181"},"6":{"str":"127.0.0.1:2181"},"7":{"str":"127.0.0.1:2181"}}'
)
SMALL = b'1\nBKDL\n{"1":{"str":"a"},"2":{"str":"/l"}}'

TEXTS = st.text(max_size=8)
BINDINGS = st.builds(
    NamespaceBinding,
    TEXTS,
    TEXTS,
    st.booleans(),
    st.booleans(),
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS,
    st.none() | TEXTS.map(lambda text: "." + text),
    st.none() | st.integers(1, 2**63 - 1).map(Lssn),
    st.booleans(),
)


def test_vector_k_is_apaches() -> None:
    assert len(VECTOR_K) == 173
    digest = "533b7f10146147a4bcd4841c3b3eba9954cccb531a37d3a0b8dbfe87d3ecd199"
    assert hashlib.sha256(VECTOR_K).hexdigest() == digest
    assert encode_binding(BOUND) == VECTOR_K
    assert decode_binding(VECTOR_K) == BOUND


@pytest.mark.parametrize(
    ("binding", "tail"),
    [
        (replace(BOUND, acl_path=".acl", first_lssn=Lssn(1)), b',"8":{"str":".acl"},"9":{"i64":1}}'),
        (replace(BOUND, federated=True), b',"10":{"tf":1}}'),
    ],
)
def test_vector_k_with_a_tail_is_apaches(binding: NamespaceBinding, tail: bytes) -> None:
    data = VECTOR_K[:-1] + tail
    assert encode_binding(binding) == data
    assert decode_binding(data) == binding


def test_absent_fields_stand_for_others() -> None:
    binding = decode_binding(SMALL)
    assert binding == NamespaceBinding("a", "/l", sanity_check_txid=True, encode_region=False, federated=False)
    assert binding.resolved("uri:1") == NamespaceBinding(
        "a",
        "/l",
        bk_servers_for_reader="a",
        dl_servers_for_writer="uri:1",
        dl_servers_for_reader="uri:1",
        first_lssn=Lssn(1),
    )
    given_writer = replace(binding, dl_servers_for_writer="w:1", first_lssn=Lssn(7)).resolved("uri:1")
    assert (given_writer.dl_servers_for_reader, given_writer.first_lssn) == ("w:1", 7)
    complete = replace(BOUND, first_lssn=Lssn(3))
    assert complete.resolved("uri:1") == complete


def test_order_line_breaks_and_unknown_fields_do_not_matter() -> None:
    data = b'1\nBKDL\n{"2":{"str":"/l"},\n"77":{"lst":["i32",1,5]},\n"1":{"str":"a"}}\n'
    assert decode_binding(data) == NamespaceBinding("a", "/l")


def test_text_is_escaped_where_json_needs_it() -> None:
    binding = NamespaceBinding('q"\\\n\x01é', "/ \u20ac")
    data = encode_binding(binding)
    assert b'{"str":"q\\"\\\\\\n\\u0001\xc3\xa9"}' in data
    assert decode_binding(data) == binding


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the format version on line 1"),
        (b"2\nBKDL\n{}", "the format version on line 1"),
        (b"1", "line 2 should be BKDL"),
        (b"1\nbkdl\n{}", "line 2 should be BKDL"),
        (b"1\nBKDL", "line 3 is not JSON"),
        (b"1\nBKDL\n" + b"[" * 100_000, "line 3 is not JSON"),
        (b"1\nBKDL\n[]", "line 3 should be a JSON object"),
        (b"1\nBKDL\n{}", "it lacks bk_servers"),
        (b'1\nBKDL\n{"1":{"str":"a"}}', "it lacks ledgers_path"),
        (SMALL.replace(b",", b", "), "blanks"),
        (SMALL.replace(b'"1":', b'"1" :'), "blanks"),
        (SMALL.replace(b'{"str":"a"}', b'"a"'), "bk_servers should be"),
        (SMALL.replace(b'{"str":"a"}', b'{"str":"a","tf":1}'), "bk_servers should be"),
        (SMALL.replace(b'{"str":"a"}', b'{"i64":1}'), "bk_servers should be"),
        (SMALL[:-1] + b',"3":{"tf":true}}', "sanity_check_txid should be"),
        (SMALL[:-1] + b',"4":{"tf":2}}', "encode_region should be"),
        (SMALL[:-1] + b',"9":{"i64":"1"}}', "first_lssn should be"),
        (SMALL[:-1] + b',"9":{"i64":0}}', "0 cannot number the first segment"),
        (SMALL[:-1] + b',"9":{"i64":9223372036854775808}}', "cannot number the first segment"),
        (SMALL[:-1] + b',"8":{"str":"acl"}}', "does not begin with"),
        (SMALL.replace(b'"a"', b'"\\ud800"'), "is not valid text"),
        (SMALL.replace(b'"a"', b'"\xff"'), "is not UTF-8"),
    ],
)
def test_a_broken_binding_is_refused_saying_where(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"namespace binding: .*{complaint}"):
        decode_binding(data)


def test_blanks_inside_of_strings_are_text() -> None:
    assert decode_binding(SMALL.replace(b'"a"', b'"a, b\\" c"')).bk_servers == 'a, b" c'


@pytest.mark.parametrize(
    "changes", [{"acl_path": "acl"}, {"first_lssn": 0}, {"first_lssn": 2**63}, {"bk_servers": "\ud800"}]
)
def test_a_binding_that_could_not_be_read_back_cannot_be_made(changes: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        replace(BOUND, **changes)  # type: ignore[arg-type]


@some_examples
@given(BINDINGS)
def test_what_was_written_is_read_back_and_is_json_without_blanks(binding: NamespaceBinding) -> None:
    data = encode_binding(binding)
    assert decode_binding(data) == binding
    struct = data.decode().split("\n", 2)[2]
    assert json.dumps(json.loads(struct), separators=(",", ":"), ensure_ascii=False) == struct


@many_examples
@given(st.one_of(st.binary(), damaged(BINDINGS.map(encode_binding))))
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    binding = decoded_or_damaged(decode_binding, data)
    if binding is not None:
        assert decode_binding(encode_binding(binding)) == binding
