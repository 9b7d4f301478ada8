"""Ledger metadata: Apache's own bytes in both directions, what must and must not be read, and any bytes at all."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import damaged, decoded_or_damaged, ledger_metadata, many_examples, some_examples

from quire.codec.ledger_metadata import decode_ledger_metadata, encode_ledger_metadata
from quire.codec.ledger_metadata_messages import message_of
from quire.codec.messages import write_binary
from quire.codec.pb import bookkeeper_metadata_pb2 as pb
from quire.codec.protobuf import varint
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, DigestType, EntryId, Fragment, LedgerMetadata, LedgerState, Quorum

HEADER = b"BookieMetadataFormatVersion\t"
HEADER_3 = HEADER + b"3\n"

BK1, BK2, BK3, BK4 = (BookieId(f"bk{number}:3181") for number in (1, 2, 3, 4))


def fragment(first_entry_id: int, *bookies: BookieId) -> Fragment:
    return Fragment(EntryId(first_entry_id), bookies)


# --- Vectors made by BookKeeper's own serializer: spec/ledger-metadata.md, section 9

A = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=2, ack=2),
    fragments=(fragment(0, BK1, BK2, BK3),),
    digest=DigestType.CRC32C,
    password=b"secret",
    ctoken=0x0123456789ABCDEF,
)
A_BYTES = HEADER_3 + bytes.fromhex(
    "4b 0802 1003 1800 20ffffffffffffffffff01 2801"
    "3220 0a08626b313a33313831 0a08626b323a33313831 0a08626b333a33313831 1000"
    "3803 4206736563726574 4802 60ef9bafcdf8acd19101"
)
A_RECOVERING = A.updated(state=LedgerState.IN_RECOVERY)
A_RECOVERING_BYTES = HEADER_3 + bytes.fromhex(
    "43 08021003180020ffffffffffffffffff01280232200a08626b313a333138310a08626b323a333138310a08626b333a333138311000"
    "3803420673656372657448026000"
)
B = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=3, ack=2),
    fragments=(fragment(0, BK1, BK2, BK3), fragment(100, BK1, BookieId("bookie-four"), BK3)),
    state=LedgerState.CLOSED,
    last_entry_id=EntryId(149),
    length=76543,
    digest=DigestType.MAC,
    password=b"",
    ctime_ms=1700000000000,
    custom={"app": b"x\x00\xff"},
)
B_BYTES = HEADER_3 + bytes.fromhex(
    "6f 0803100318ffd504209501280332200a08626b313a333138310a08626b323a333138310a08626b333a33313831100032230a08626b313a"
    "333138310a0b626f6f6b69652d666f75720a08626b333a3331383110643802420048025080d095ffbc315a0a0a0361707012037800ff6000"
)
C = LedgerMetadata(
    quorum=Quorum(ensemble=2, write=2, ack=1),
    fragments=(fragment(0, BK1, BK2),),
    digest=DigestType.CRC32,
    password=b"a\"b'c\\d\n\t\x01\x7f\xc3\xa9",
    ctime_ms=1700000000000,
    custom={"k\u00e9y": b"\x00\xff\x07\x0b"},
    format_version=2,
)
C_BYTES = rb"""BookieMetadataFormatVersion<TAB>2
quorumSize: 2
ensembleSize: 2
length: 0
lastEntryId: -1
state: OPEN
segment {
  ensembleMember: "bk1:3181"
  ensembleMember: "bk2:3181"
  firstEntryId: 0
}
digestType: CRC32
password: "a\"b\'c\\d\n\t\001\177\303\251"
ackQuorumSize: 1
ctime: 1700000000000
customMetadata {
  key: "k\303\251y"
  value: "\000\377\007\013"
}
""".replace(b"<TAB>", b"\t")
D_OPEN = LedgerMetadata(
    quorum=Quorum(ensemble=3, write=2, ack=2),
    fragments=(fragment(0, BK1, BK2, BK3), fragment(42, BK1, BK4, BK3)),
    digest=None,
    password=None,
    format_version=1,
)
D_RECOVERING = replace(D_OPEN, state=LedgerState.IN_RECOVERY)
D_CLOSED = replace(D_OPEN, state=LedgerState.CLOSED, last_entry_id=EntryId(99), length=12345)
D_FRAGMENTS = b"0\tbk1:3181\tbk2:3181\tbk3:3181\n42\tbk1:3181\tbk4:3181\tbk3:3181\n"
D_OPEN_BYTES = HEADER + b"1\n2\n3\n0\n" + D_FRAGMENTS
D_RECOVERING_BYTES = D_OPEN_BYTES + b"-102\tCLOSED"
D_CLOSED_BYTES = HEADER + b"1\n2\n3\n12345\n" + D_FRAGMENTS + b"99\tCLOSED"
E = LedgerMetadata(
    quorum=Quorum(ensemble=1, write=1, ack=1),
    fragments=(fragment(0, BookieId("127.0.0.1:3181")),),
    state=LedgerState.CLOSED,
    digest=DigestType.CRC32,
    password=b"pw",
)
E_BYTES = HEADER_3 + bytes.fromhex(
    "31 08011001180020ffffffffffffffffff01280332120a0e3132372e302e302e313a33313831100038014202707748016000"
)

VECTORS = [
    pytest.param(A, A_BYTES, 106, id="A"),
    pytest.param(A_RECOVERING, A_RECOVERING_BYTES, 98, id="A'"),
    pytest.param(B, B_BYTES, 142, id="B"),
    pytest.param(C, C_BYTES, 352, id="C"),
    pytest.param(D_OPEN, D_OPEN_BYTES, 95, id="D-open"),
    pytest.param(D_RECOVERING, D_RECOVERING_BYTES, 106, id="D-in-recovery"),
    pytest.param(D_CLOSED, D_CLOSED_BYTES, 108, id="D-closed"),
    pytest.param(E, E_BYTES, 80, id="E"),
]


@pytest.mark.parametrize(("metadata", "data", "size"), VECTORS)
def test_apaches_bytes_are_written(metadata: LedgerMetadata, data: bytes, size: int) -> None:
    assert len(data) == size
    assert encode_ledger_metadata(metadata) == data


@pytest.mark.parametrize(("metadata", "data", "size"), VECTORS)
def test_apaches_bytes_are_read(metadata: LedgerMetadata, data: bytes, size: int) -> None:
    assert decode_ledger_metadata(data) == metadata


# --- What must be refused


def version_3(**changes: object) -> bytes:
    """A small valid ledger in version 3, but for `changes` to its message; None takes a field out."""
    message = pb.LedgerMetadataFormat(
        quorumSize=1,
        ensembleSize=1,
        length=0,
        lastEntryId=-1,
        state="OPEN",
        segment=[pb.LedgerMetadataFormat.Segment(ensembleMember=[BK1], firstEntryId=0)],
        digestType="CRC32",
        password=b"pw",
        ackQuorumSize=1,
    )
    for name, value in changes.items():
        message.ClearField(name)
        if isinstance(value, list):
            getattr(message, name).extend(value)
        elif value is not None:
            setattr(message, name, value)
    body = message.SerializePartialToString()
    assert len(body) < 128  # So that the length fits into one byte.
    return HEADER_3 + bytes([len(body)]) + body


def segment(first_entry_id: int | None, *bookies: str) -> pb.LedgerMetadataFormat.Segment:
    return pb.LedgerMetadataFormat.Segment(ensembleMember=bookies, firstEntryId=first_entry_id)


def test_the_base_of_the_refusals_is_itself_read() -> None:
    assert decode_ledger_metadata(version_3()).password == b"pw"


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "should start with"),
        (HEADER_3[:-1], "no version number"),
        (HEADER + b"4\n", "format version 4 is unknown"),
        (HEADER + b"0\n", "format version 0 is unknown"),
        (HEADER + b"3\r\n", "no version number"),
        (HEADER + b"-1\n", "no version number"),
        (HEADER + b"\n", "no version number"),
        (HEADER + b"0000000003\n" + A_BYTES[len(HEADER_3) :], "no version number"),
        (b"x" + A_BYTES, "should start with"),
        (A_BYTES.replace(b"\t", b" ", 1), "should start with"),
        (HEADER_3, "no message length"),
        (HEADER_3 + b"\xff\xff\xff\xff\xff\x01", "no message length"),
        (A_BYTES[:-1], "75 bytes should follow, but 74 are there"),
        (HEADER_3 + b"\x02\x08\x02", "ensembleSize is missing"),
        (HEADER_3 + b"\x01\xff", "no LedgerMetadataFormat message"),
        (version_3(quorumSize=None), "quorumSize is missing"),
        (version_3(ensembleSize=None), "ensembleSize is missing"),
        (version_3(length=None), "length is missing"),
        (version_3(state=None), "state is missing"),
        (version_3().replace(b"\x28\x01", b"\x28\x09"), "state is missing, or has no value"),
        (version_3(segment=None), "no fragment"),
        (version_3(segment=[segment(None, BK1)]), "segment.firstEntryId is missing"),
        (version_3(segment=[segment(0, BK1), segment(0, BK2)]), "does not come after"),
        (version_3(segment=[segment(5, BK1), segment(3, BK2)]), "does not come after"),
        (version_3(segment=[segment(0, BK1, BK2)]), "has 2 bookies, the ensemble size is 1"),
        (version_3(segment=[segment(0, "no spaces")]), "cannot be a bookie id"),
        (version_3(quorumSize=3, ensembleSize=2, segment=[segment(0, BK1, BK2)]), "do not fit together"),
        (version_3(ackQuorumSize=2), "do not fit together"),
        (version_3(ackQuorumSize=-1), "do not fit together"),
        (version_3(digestType=None), "no known digest type"),
        (version_3().replace(b"\x38\x01", b"\x38\x09"), "no known digest type"),
        (version_3().replace(b"bk1", b"bk\xff"), "ensembleMember is not UTF-8"),
    ],
)
def test_what_apache_refuses_is_refused(data: bytes, complaint: str) -> None:
    with pytest.raises(DamagedMetadata, match=complaint):
        decode_ledger_metadata(data)


# --- What must be read


def test_unknown_fields_of_version_3_are_ignored() -> None:
    """A later release may add fields: number 100 (a varint) and 101 (bytes) mean nothing yet."""
    body = A_BYTES[len(HEADER_3) + 1 :] + bytes.fromhex("a00607 aa060178")
    assert decode_ledger_metadata(HEADER_3 + bytes([len(body)]) + body) == A


def test_bytes_after_the_message_of_version_3_are_ignored() -> None:
    assert decode_ledger_metadata(A_BYTES + b"\xff\x00anything") == A


def test_leading_zeros_of_the_version_are_ignored() -> None:
    assert decode_ledger_metadata(HEADER + b"000000003\n" + A_BYTES[len(HEADER_3) :]) == A


def test_an_absent_ack_quorum_is_the_write_quorum() -> None:
    assert decode_ledger_metadata(C_BYTES.replace(b"ackQuorumSize: 1\n", b"")).quorum == Quorum(2, 2, 2)
    assert decode_ledger_metadata(version_3(ackQuorumSize=None)).quorum == Quorum(1, 1, 1)


def test_a_closed_ledger_without_last_entry_id_ends_at_entry_0() -> None:
    """Odd, but what Apache's readers make of it; a ledger must not have two ends."""
    metadata = decode_ledger_metadata(version_3(state=3, lastEntryId=None, length=7))
    assert (metadata.last_entry_id, metadata.length) == (0, 7)


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_length_and_last_entry_id_count_only_when_closed(state: LedgerState) -> None:
    metadata = decode_ledger_metadata(version_3(state=state.value, lastEntryId=9, length=7))
    assert (metadata.state, metadata.last_entry_id, metadata.length) == (state, -1, 0)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_length_and_last_entry_id_are_written_only_when_closed(version: int, state: LedgerState) -> None:
    plain = {1: D_OPEN, 2: C, 3: A}[version]
    busy = replace(plain, state=state, last_entry_id=EntryId(41), length=1234)
    assert encode_ledger_metadata(busy) == encode_ledger_metadata(replace(plain, state=state))


def test_an_absent_creation_time_is_not_written_back() -> None:
    data = C_BYTES.replace(b"ctime: 1700000000000\n", b"")
    assert decode_ledger_metadata(data).ctime_ms is None
    assert encode_ledger_metadata(decode_ledger_metadata(data)) == data


def test_a_creation_time_of_zero_is_kept() -> None:
    assert decode_ledger_metadata(encode_ledger_metadata(replace(A, ctime_ms=0))).ctime_ms == 0


def test_the_last_of_two_equal_custom_keys_counts() -> None:
    entry = pb.LedgerMetadataFormat.CustomEntry
    data = version_3(customMetadata=[entry(key="k", value=b"1"), entry(key="k", value=b"2"), entry()])
    assert decode_ledger_metadata(data).custom == {"k": b"2", "": b""}


@pytest.mark.parametrize(("name", "digest"), [("CRC32", 1), ("HMAC", 2), ("CRC32C", 3), ("DUMMY", 4)])
def test_digest_types_have_apaches_names(name: str, digest: int) -> None:
    data = C_BYTES.replace(b"digestType: CRC32\n", f"digestType: {name}\n".encode())
    assert decode_ledger_metadata(data).digest is DigestType(digest)
    assert encode_ledger_metadata(replace(C, digest=DigestType(digest))) == data


# --- Ledgers of very old writers


@pytest.mark.parametrize(
    "data",
    [
        version_3(password=None, digestType=None),
        version_3(password=None),  # Apache's readers look at the digest type only where there is a password.
        HEADER
        + b'2\nquorumSize: 1 ensembleSize: 1 length: 0 state: OPEN segment { ensembleMember: "a" firstEntryId: 0 }',
    ],
)
def test_a_ledger_without_password_can_be_read_but_not_written(data: bytes) -> None:
    metadata = decode_ledger_metadata(data)
    assert (metadata.password, metadata.digest) == (None, None)
    with pytest.raises(InvalidArgument, match="without password and digest type"):
        encode_ledger_metadata(metadata)


# --- Version 2: what the text may look like

LOOSE = rb"""BookieMetadataFormatVersion<TAB>2
# Any order, any spacing, names that nobody knows yet.
segment: < firstEntryId: 0x0, ensembleMember: ['bk1:3181', "bk2" ':3181'] >
state:OPEN;ackQuorumSize:1,ensembleSize: 2 quorumSize: 02
futureMessage { deep { deeper: [1, 2.5, { x: y }] } text: "}" } futureNumber: -inf 77: 5
length: 0 digestType: 1 password: "a\042b\x27c\\d\n\t\1\177\303\251"
ctime: 1 ctime: 1700000000000
customMetadata: { value: "\0\377\a\v" key: "k<E>y" }""".replace(b"<TAB>", b"\t").replace(b"<E>", "\u00e9".encode())


def test_version_2_is_read_as_tolerantly_as_apache_does() -> None:
    assert decode_ledger_metadata(LOOSE) == C


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (b"state: OPEN", b"state: AJAR", "line 6, column 8: 'state' has no such value"),
        (b"state: OPEN", b"state: 9", "line 6, column 8: 'state' has no such value"),
        (b"quorumSize: 2\nens", b"quorumSize: 2147483648\nens", "line 2, column 13: 'quorumSize' is too large"),
        (b"length: 0", b"length: 0.5", "'length' should be an integer"),
        (b"length: 0", b"length: " + b"9" * 5000, "'length' should be an integer"),
        (b"length: 0", b'length: "0"', "'length' should be an integer"),
        (b"length: 0", b"length 0", "':' should follow 'length'"),
        (b"segment {", b"segment", "'{' should follow 'segment'"),
        (b"\\177", b"\\q", "line 13, column 11: this string has an escape that means nothing"),
        (b"\\177", b"\\777", "this string has an escape that means nothing"),
        (b'key: "k\\303', b'key: "k\\377', "'key' is not UTF-8"),
        (b"firstEntryId: 0\n}", b"firstEntryId: 0\n", "line 20, column 1: a field name or '}' should stand here"),
        (b"ackQuorumSize: 1\n", b"ackQuorumSize: 1\n}\n", "a field name should stand here"),
        (b"length: 0\n", b"", "length is missing"),
    ],
)
def test_broken_version_2_is_refused_saying_where(old: bytes, new: bytes, complaint: str) -> None:
    assert C_BYTES.count(old) == 1
    with pytest.raises(DamagedMetadata, match=complaint):
        decode_ledger_metadata(C_BYTES.replace(old, new))


def test_version_2_never_stores_the_creation_token() -> None:
    """Releases before 4.10 would refuse the whole ledger for that name."""
    assert encode_ledger_metadata(replace(C, ctoken=7)) == C_BYTES


def test_errors_do_not_show_the_password() -> None:
    broken = C_BYTES.replace(b'password: "a', b'password: "hunter2\\q')
    with pytest.raises(DamagedMetadata) as caught:
        decode_ledger_metadata(broken)
    assert "hunter2" not in str(caught.value)


# --- Any value, any bytes


@pytest.mark.parametrize("version", [1, 2, 3])
@some_examples
@given(data=st.data())
def test_what_was_written_is_read_back(version: int, data: st.DataObject) -> None:
    metadata = data.draw(ledger_metadata(version=version))
    assert decode_ledger_metadata(encode_ledger_metadata(metadata)) == metadata


@some_examples
@given(ledger_metadata(version=3))
def test_the_bytes_of_version_3_are_those_of_googles_library(metadata: LedgerMetadata) -> None:
    assert metadata.password is not None
    assert metadata.digest is not None
    message = message_of(metadata, (metadata.password, metadata.digest))
    message.cToken = metadata.ctoken
    body = write_binary(message)
    assert encode_ledger_metadata(metadata) == HEADER + b"3\n" + varint(len(body)) + body


@many_examples
@given(
    st.builds(bytes.__add__, st.sampled_from([b"", HEADER, *(HEADER + b"%d\n" % n for n in (1, 2, 3))]), st.binary())
)
def test_arbitrary_bytes_are_read_or_damaged(data: bytes) -> None:
    decoded_or_damaged(decode_ledger_metadata, data)


@pytest.mark.parametrize("version", [1, 2, 3])
@many_examples
@given(data=st.data())
def test_accidents_never_produce_what_we_could_not_write_again(version: int, data: st.DataObject) -> None:
    """Whatever still decodes after an accident is a full value: it encodes, and decodes to the same again."""
    broken = data.draw(damaged(ledger_metadata(version=version).map(encode_ledger_metadata)))
    metadata = decoded_or_damaged(decode_ledger_metadata, broken)
    if metadata is None or (metadata.password is None and metadata.format_version != 1):
        return
    if metadata.format_version == 2:
        metadata = replace(metadata, ctoken=0)
    assert decode_ledger_metadata(encode_ledger_metadata(metadata)) == metadata
