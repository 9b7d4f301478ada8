"""Text format as tolerant as Apache's readers, on any bytes; Google's own printer is the second opinion."""

from functools import partial

import pytest
from google.protobuf import text_format
from hypothesis import example, given
from hypothesis import strategies as st
from tests.support.strategies import INT64, damaged, decoded_or_damaged, many_examples

from quire.codec.messages import read_text
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.codec.text_writer import write_text
from quire.errors import DamagedMetadata

MARKS = st.builds(
    pb.UnderreplicatedLedgerFormat,
    replica=st.lists(st.text(max_size=8), max_size=3),
    ctime=st.none() | INT64,
)
LEDGERS = st.builds(
    pb.LedgerMetadataFormat,
    quorumSize=st.integers(0, 9),
    ensembleSize=st.integers(0, 9),
    length=INT64,
    state=st.sampled_from(["OPEN", "IN_RECOVERY", "CLOSED"]),
    segment=st.lists(
        st.builds(
            pb.LedgerMetadataFormat.Segment,
            ensembleMember=st.lists(st.text(max_size=4), max_size=3),
            firstEntryId=INT64,
        ),
        max_size=2,
    ),
    digestType=st.sampled_from(["CRC32", "HMAC", "CRC32C", "DUMMY"]),
    password=st.binary(max_size=20),
)

read_mark = partial(read_text, message_type=pb.UnderreplicatedLedgerFormat, what="mark")


def replicas(text: bytes) -> list[str]:
    return list(read_mark(text).replica)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", []),
        (b" \t\r\n\f\v# only a comment", []),
        (b'replica: "a"', ["a"]),
        (b"replica:'a'replica:'b'", ["a", "b"]),
        (b"replica: 'a', replica: 'b'; replica: 'c';", ["a", "b", "c"]),
        (b"replica: ['a', 'b']  replica: []", ["a", "b"]),
        (b"replica: 'a' \"b\"  # joined\n 'c'", ["abc"]),
        (rb"""replica: '"\"\''""", ['""\'']),
        (rb'replica: "\a\b\f\n\r\t\v\\\?"', ["\a\b\f\n\r\t\v\\?"]),
        (rb'replica: "\1\12\101\x41\x4a\Xa"', ["\1\nAAJ\n"]),
        (rb'replica: "\303\251"', ["\u00e9"]),
        ('replica: "\u00e9"'.encode(), ["\u00e9"]),
        (b"unknown: 1 replica: 'a'", ["a"]),
        (b"unknown { replica: 'x' } replica: 'a'", ["a"]),
        (b"unknown: < a: [1, 'x', {b: c}] > replica: 'a'", ["a"]),
        (b"unknown: 'x' 'y' replica: 'a'", ["a"]),
        (b"unknown: NAME 12: 1e9 x: -inf replica: 'a'", ["a"]),
    ],
)
def test_every_way_to_write_it_is_understood(text: bytes, expected: list[str]) -> None:
    assert replicas(text) == expected


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("-0", 0),
        ("12", 12),
        ("-12", -12),
        ("0x1F", 31),
        ("-0X1f", -31),
        ("017", 15),
        (str(-(2**63)), -(2**63)),
    ],
)
def test_integers_may_be_decimal_octal_or_hexadecimal(text: str, number: int) -> None:
    assert read_mark(f"ctime: {text}".encode()).ctime == number


@pytest.mark.parametrize(
    "text", ["08", "0x", "1.0", "1e3", "--1", "+1", "1_0", str(2**63), "1" * 5000, "'1'", "one", "[1]", "{}", ""]
)
def test_nothing_else_is_an_integer(text: str) -> None:
    with pytest.raises(DamagedMetadata, match="'ctime'"):
        read_mark(f"ctime: {text}".encode())


def test_the_last_value_counts_where_one_is_allowed() -> None:
    assert read_mark(b"ctime: 1 ctime: 2").ctime == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (b"\nreplica: $", "line 2, column 9: this is no text format"),
        (b"replica", "line 1, column 8: ':' should follow 'replica'"),
        (b"replica 'a'", "':' should follow 'replica'"),
        (b"replica: ", "a quoted string should stand here"),
        (b"replica: a", "a quoted string should stand here"),
        (b"replica: 'a", "this is no text format"),
        (b"replica: 'a\n'", "this is no text format"),
        (b"replica: 'a\\", "this is no text format"),
        (b"replica: '\\x'", "escape that means nothing"),
        (b"replica: '\\u00e9'", "escape that means nothing"),
        (b"replica: '\\400'", "escape that means nothing"),
        (b"ctime: 1\nreplica: '\xff'", "line 2, column 10: 'replica' is not UTF-8"),
        (b"replica: ['a'", "a quoted string should stand here"),
        (b"unknown", "':' or '{' should follow"),
        (b"unknown: ", "a value should stand here"),
        (b"unknown: }", "a value should stand here"),
        (b"unknown { a: 1 >", "a field name or '}' should stand here"),
        (b"unknown { a: 1", "a field name or '}' should stand here"),
        (b"}", "a field name should stand here"),
        (b"'a': 1", "a field name should stand here"),
        (b"[ext.name]: 1", "a field name should stand here"),
        (b"a {" * 5000, "more than 32 messages inside one another"),
        (b"a: [{" * 5000, "more than 32 messages inside one another"),
    ],
)
def test_what_means_nothing_is_refused_saying_where(text: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=f"mark: .*{complaint}"):
        read_mark(text)


@pytest.mark.parametrize("text", [b" " * 100_000 + b"$", b"#" * 100_000 + b"\n$", b" #\n" * 50_000 + b"$"])
def test_long_damage_is_refused_quickly(text: bytes) -> None:
    """A careless pattern would try every way to split the run, and outlive the test's time limit."""
    with pytest.raises(DamagedMetadata):
        read_mark(text)


@pytest.mark.parametrize("pointy", [False, True])
@pytest.mark.parametrize("short", [False, True])
@many_examples
@given(message=LEDGERS)
def test_we_understand_googles_text(message: pb.LedgerMetadataFormat, pointy: bool, short: bool) -> None:
    text = text_format.MessageToString(
        message, as_utf8=short, as_one_line=pointy, pointy_brackets=pointy, use_short_repeated_primitives=short
    )
    assert read_text(text.encode(), pb.LedgerMetadataFormat, "ledger") == message


@many_examples
@given(st.one_of(MARKS, LEDGERS))
def test_we_understand_our_own_text(message: pb.UnderreplicatedLedgerFormat | pb.LedgerMetadataFormat) -> None:
    assert read_text(write_text(message), type(message), "message") == message


@many_examples
@given(st.one_of(st.binary(), damaged(st.one_of(MARKS, LEDGERS).map(write_text))))
@example(b"replica")
def test_any_bytes_are_read_or_damaged(data: bytes) -> None:
    for message_type in (pb.UnderreplicatedLedgerFormat, pb.LedgerMetadataFormat):
        decoded_or_damaged(partial(read_text, message_type=message_type, what="message"), data)
