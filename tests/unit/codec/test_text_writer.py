"""Text format as Apache prints it; Google's own reader is the second opinion."""

import pytest
from google.protobuf import text_format
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import INT64, many_examples

from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.codec.text_writer import quote, write_text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", ""),
        (b"plain ~", "plain ~"),
        (b"\n\r\t\"'\\", r"\n\r\t\"\'\\"),
        (b"\b\f", r"\b\f"),
        (b"\a\v", r"\007\013"),
        (b"\x00\x1f\x7f\x80\xff", r"\000\037\177\200\377"),
        ("\u00e9".encode(), r"\303\251"),
        (b"\x001", r"\0001"),  # Three digits always: a shorter escape would swallow the 1.
    ],
)
def test_bytes_are_escaped_as_apache_does(data: bytes, text: str) -> None:
    assert quote(data) == f'"{text}"'


def test_only_fields_that_are_set_are_printed_in_the_order_of_their_numbers() -> None:
    message = pb.UnderreplicatedLedgerFormat()
    message.ctime = 0
    message.replica.extend(["b", "a"])
    assert write_text(message) == b'replica: "b"\nreplica: "a"\nctime: 0\n'


def test_nothing_is_printed_of_an_empty_message() -> None:
    assert write_text(pb.LockDataFormat()) == b""


def test_messages_nest_by_two_spaces() -> None:
    message = pb.LedgerMetadataFormat(segment=[pb.LedgerMetadataFormat.Segment(ensembleMember=["a"], firstEntryId=-1)])
    assert write_text(message) == b'segment {\n  ensembleMember: "a"\n  firstEntryId: -1\n}\n'


@many_examples
@given(
    st.builds(
        pb.LedgerMetadataFormat,
        lastEntryId=INT64,
        state=st.sampled_from(["OPEN", "IN_RECOVERY", "CLOSED"]),
        password=st.binary(max_size=20),
        customMetadata=st.lists(
            st.builds(pb.LedgerMetadataFormat.CustomEntry, key=st.text(max_size=8), value=st.binary(max_size=8)),
            max_size=2,
        ),
    )
)
def test_googles_reader_understands_our_text(message: pb.LedgerMetadataFormat) -> None:
    assert text_format.Parse(write_text(message), pb.LedgerMetadataFormat()) == message
