"""Messages of version 3: Apache's bytes both ways, all that is required, and any bytes at all."""

from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from grpc_tools import protoc  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from tests.support import wire_vectors as vectors
from tests.support.strategies import INT32, INT64, damaged, many_examples, some_examples
from tests.support.wire_vectors import ENTRY, ENTRY_CRC32C, LAC_7_CRC32C, LAST, LEDGER, MASTER_KEY, body
from tests.unit.codec.wire.strategies import BODIES, ENTRIES, KEYS, LEDGERS, STATUSES, TXN_IDS, decoded_or_refused

from quire.codec.pb import bookkeeper_protocol_pb2 as pb
from quire.codec.wire.codes import Status
from quire.codec.wire.v3 import (
    decode_auth_message,
    decode_request,
    decode_response,
    encode_refusal,
    encode_request,
    encode_response,
)
from quire.codec.wire.v3_messages import (
    AUTH_DISABLED_PLUGIN,
    DEFERRED_SYNC,
    FREE_DISK,
    HIGH_PRIORITY,
    TOTAL_DISK,
    AddRequest,
    AddResponse,
    AuthMessage,
    BookieInfoRequest,
    BookieInfoResponse,
    ForceLedgerRequest,
    ForceLedgerResponse,
    ListEntriesRequest,
    ListEntriesResponse,
    Operation,
    ReadFlag,
    ReadLacRequest,
    ReadLacResponse,
    ReadRequest,
    ReadResponse,
    Request,
    RequestContent,
    Response,
    ResponseContent,
    StartTlsRequest,
    StartTlsResponse,
    WriteLacRequest,
    WriteLacResponse,
)
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import EntryId, LedgerId

PROTOS = Path(__file__).parents[4] / "protos"
OP = Operation
NO_AUTH = AuthMessage(AUTH_DISABLED_PLUGIN)
LONG_POLL = ReadRequest(LEDGER, LAST, previous_lac=LAST, timeout_ms=2000, flag=ReadFlag.ENTRY_PIGGYBACK)
FENCE = ReadRequest(LEDGER, LAST, MASTER_KEY, flag=ReadFlag.FENCE_LEDGER)

REQUESTS = {
    "auth": (vectors.V3_AUTH, Request(300, OP.AUTH, NO_AUTH)),
    "add": (vectors.V3_ADD, Request(1, OP.ADD_ENTRY, AddRequest(LEDGER, ENTRY, MASTER_KEY, ENTRY_CRC32C))),
    "recovery add": (
        vectors.V3_RECOVERY_ADD_OF_X,
        Request(
            1,
            OP.ADD_ENTRY,
            AddRequest(LEDGER, ENTRY, MASTER_KEY, b"x", DEFERRED_SYNC, recovery=True),
            priority=HIGH_PRIORITY,
        ),
    ),
    "long poll": (vectors.V3_LONG_POLL, Request(2, OP.READ_ENTRY, LONG_POLL)),
    "fence": (vectors.V3_FENCE, Request(3, OP.READ_ENTRY, FENCE)),
    "write LAC": (
        vectors.V3_WRITE_LAC,
        Request(4, OP.WRITE_LAC, WriteLacRequest(LEDGER, EntryId(7), MASTER_KEY, LAC_7_CRC32C)),
    ),
    "read LAC": (vectors.V3_READ_LAC, Request(5, OP.READ_LAC, ReadLacRequest(LEDGER))),
    "force": (vectors.V3_FORCE_LEDGER, Request(7, OP.FORCE_LEDGER, ForceLedgerRequest(LEDGER))),
    "info": (vectors.V3_BOOKIE_INFO, Request(8, OP.GET_BOOKIE_INFO, BookieInfoRequest(TOTAL_DISK | FREE_DISK))),
    "list": (vectors.V3_LIST_ENTRIES, Request(9, OP.GET_LIST_OF_ENTRIES_OF_LEDGER, ListEntriesRequest(LEDGER))),
    "TLS": (vectors.V3_START_TLS, Request(1, OP.START_TLS, StartTlsRequest())),
}
RESPONSES = {
    "auth": (vectors.V3_AUTH_OK, Response(300, OP.AUTH, Status.EOK, NO_AUTH)),
    "add": (vectors.V3_ADD_OK, Response(1, OP.ADD_ENTRY, Status.EOK, AddResponse(LEDGER, ENTRY))),
    "long poll without entry": (
        vectors.V3_LONG_POLL_EMPTY,
        Response(2, OP.READ_ENTRY, Status.EOK, ReadResponse(LEDGER, LAST, max_lac=LAST)),
    ),
    "long poll with entry": (
        vectors.V3_LONG_POLL_ENTRY,
        Response(2, OP.READ_ENTRY, Status.EOK, ReadResponse(LEDGER, ENTRY, ENTRY_CRC32C, max_lac=EntryId(0))),
    ),
    "no entry": (
        vectors.V3_FENCE_NO_ENTRY,
        Response(3, OP.READ_ENTRY, Status.ENOENTRY, ReadResponse(LEDGER, LAST)),
    ),
    "TLS": (vectors.V3_START_TLS_OK, Response(1, OP.START_TLS, Status.EOK, StartTlsResponse())),
}

# --- Apache's bytes


@pytest.mark.parametrize("name", REQUESTS)
def test_apaches_requests_are_written_and_read(name: str) -> None:
    frame, request = REQUESTS[name]
    assert request.content is not None
    assert encode_request(request.txn_id, request.content, priority=request.priority) == frame
    assert decode_request(body(frame)) == request


@pytest.mark.parametrize("name", RESPONSES)
def test_apaches_answers_are_written_and_read(name: str) -> None:
    frame, response = RESPONSES[name]
    assert response.content is not None
    assert encode_response(response.txn_id, response.status, response.content) == frame
    assert decode_response(body(frame)) == response


def test_fields_come_in_any_order() -> None:
    """Newer Java releases write the flag of a read or an add first."""
    header, flag, rest = (
        "0a08 0803 1002 1801 2064 aa0622",
        "a00601",
        "0801 1000 1a14" + MASTER_KEY.hex() + "220178 2801",
    )
    assert bytes.fromhex(header + rest + flag) == vectors.V3_RECOVERY_ADD_OF_X[4:]
    reordered = memoryview(bytes.fromhex(header + flag + rest))
    assert decode_request(reordered) == REQUESTS["recovery add"][1]


def test_numbers_without_a_vector_are_apaches_too() -> None:
    numbers = {
        message: {field.name: field.number for field in pb.DESCRIPTOR.message_types_by_name[message].fields}
        for message in ("ReadResponse", "ReadLacResponse", "BookieInfoResponse", "ListEntriesResponse", "ContextPair")
    }
    assert numbers == {
        "ReadResponse": {
            "status": 1, "ledger_id": 2, "entry_id": 3, "body": 4, "max_lac": 5, "lac_updated_ms": 6,
        },
        "ReadLacResponse": {"status": 1, "ledger_id": 2, "lac_body": 3, "last_entry_body": 4},
        "BookieInfoResponse": {"status": 1, "total_disk_bytes": 2, "free_disk_bytes": 3},
        "ListEntriesResponse": {"status": 1, "ledger_id": 2, "availability": 3},
        "ContextPair": {"key": 1, "value": 2},
    }  # fmt: skip
    contents = [
        "read",
        "add",
        "auth",
        "write_lac",
        "read_lac",
        "bookie_info",
        "start_tls",
        "force_ledger",
        "list_entries",
    ]
    expected = {name: number for number, name in enumerate(contents, start=100)}
    request, response = (pb.DESCRIPTOR.message_types_by_name[name].fields for name in ("Request", "Response"))
    assert {field.name: field.number for field in request} == {"header": 1, **expected, "context": 200}
    assert {field.name: field.number for field in response} == {"header": 1, "status": 2, **expected}
    assert dict(pb.OperationType.items()) == {operation.name: operation.value for operation in Operation}


def test_the_generated_code_is_that_of_the_proto_file(tmp_path: Path) -> None:
    """Otherwise `make protos` was forgotten. Compares descriptors, which do not depend on the compiler's release."""
    descriptors = tmp_path / "descriptors"
    name = "bookkeeper_protocol.proto"
    arguments = ["protoc", f"-Iquire/codec/pb={PROTOS}", f"--descriptor_set_out={descriptors}", str(PROTOS / name)]
    assert protoc.main(arguments) == 0
    (compiled,) = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes()).file
    generated = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(generated)
    for message in (*compiled.message_type, *generated.message_type):
        for field in message.field:
            field.ClearField("json_name")  # The compiler adds it to one of the two.
    assert generated == compiled


# --- Round trips

ABSENT = st.none()
TIMES = ABSENT | INT64
REQUEST_CONTENTS: st.SearchStrategy[RequestContent] = st.one_of(
    st.builds(
        ReadRequest, LEDGERS, ENTRIES, ABSENT | BODIES, ABSENT | ENTRIES, TIMES, ABSENT | st.sampled_from(ReadFlag)
    ),
    st.builds(AddRequest, LEDGERS, ENTRIES, KEYS | BODIES, BODIES, INT32, st.booleans()),
    st.builds(WriteLacRequest, LEDGERS, ENTRIES, KEYS, BODIES),
    st.builds(ReadLacRequest, LEDGERS),
    st.builds(BookieInfoRequest, ABSENT | INT64),
    st.builds(StartTlsRequest),
    st.builds(ForceLedgerRequest, LEDGERS),
    st.builds(ListEntriesRequest, LEDGERS),
    st.builds(AuthMessage, st.text(max_size=10), BODIES),
)
RESPONSE_CONTENTS: st.SearchStrategy[ResponseContent] = st.one_of(
    st.builds(ReadResponse, LEDGERS, ENTRIES, ABSENT | BODIES, ABSENT | ENTRIES, TIMES),
    st.builds(AddResponse, LEDGERS, ENTRIES),
    st.builds(WriteLacResponse, LEDGERS),
    st.builds(ReadLacResponse, LEDGERS, ABSENT | BODIES, ABSENT | BODIES),
    st.builds(BookieInfoResponse, TIMES, TIMES),
    st.builds(StartTlsResponse),
    st.builds(ForceLedgerResponse, LEDGERS),
    st.builds(ListEntriesResponse, LEDGERS, ABSENT | BODIES),
    st.builds(AuthMessage, st.text(max_size=10), BODIES),
)


@many_examples
@given(TXN_IDS, REQUEST_CONTENTS, st.integers(0, 2**32 - 1))
def test_requests_are_read_back(txn_id: int, content: RequestContent, priority: int) -> None:
    frame = encode_request(txn_id, content, priority=priority)
    request = decode_request(body(frame))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (request.txn_id, request.priority, request.version) == (txn_id, priority, 3)
    assert request.content == content


@many_examples
@given(TXN_IDS, STATUSES, RESPONSE_CONTENTS)
def test_answers_are_read_back(txn_id: int, status: Status, content: ResponseContent) -> None:
    frame = encode_response(txn_id, status, content)
    response = decode_response(body(frame))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert (response.txn_id, response.status) == (txn_id, status)
    assert response.content == content


@some_examples
@given(TXN_IDS, st.sampled_from(Operation), STATUSES.filter(lambda status: status is not Status.EOK))
def test_refusals_are_read_back(txn_id: int, operation: Operation, status: Status) -> None:
    frame = encode_refusal(txn_id, operation, status)
    assert decode_response(body(frame)) == Response(txn_id, operation, status, None)


# --- What a bookie has to answer although it cannot do it


@pytest.mark.parametrize("operation", [OP.RANGE_READ_ENTRY, OP.RANGE_ADD_ENTRY, OP.BATCH_READ_ENTRY])
def test_an_operation_without_content_can_be_refused(operation: Operation) -> None:
    request = memoryview(bytes.fromhex("0a06 0803") + bytes([0x10, operation]) + bytes.fromhex("1807"))
    assert decode_request(request) == Request(7, operation, None)
    assert encode_refusal(7, operation, Status.EBADREQ)[4:] == bytes(request) + bytes.fromhex("109403")


@pytest.mark.parametrize("content", ["", "aa0608 0801 1000 1a00 2200"], ids=["none", "that of an add"])
def test_a_read_without_its_content_can_be_refused(content: str) -> None:
    request = bytes.fromhex("0a06 0803 1001 1807" + content)
    assert decode_request(memoryview(request)) == Request(7, OP.READ_ENTRY, None)


def test_a_request_of_an_older_version_can_be_refused() -> None:
    request = decode_request(memoryview(bytes.fromhex("0a06 0802 1007 1805 c20602 0801")))
    assert request == Request(5, OP.READ_LAC, ReadLacRequest(LEDGER), version=2)


def test_a_fence_is_never_a_long_poll() -> None:
    assert LONG_POLL.is_long_poll
    assert not FENCE.is_long_poll
    both = ReadRequest(LEDGER, LAST, MASTER_KEY, previous_lac=LAST, flag=ReadFlag.FENCE_LEDGER)
    assert not both.is_long_poll
    assert ReadRequest(LEDGER, ENTRY, previous_lac=ENTRY).is_long_poll


def test_the_context_for_logs_is_ignored() -> None:
    frame, request = REQUESTS["read LAC"]
    assert decode_request(memoryview(frame[4:] + bytes.fromhex("c20c06 0a0161 120162"))) == request


def test_an_unknown_flag_counts_as_none() -> None:
    request = decode_request(memoryview(bytes.fromhex("0a06 0803 1001 1807 a20607 0801 1000 a00603")))
    assert request.content == ReadRequest(LEDGER, ENTRY)


# --- Two statuses


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("00", "00", Status.EOK),
        ("00", "f803", Status.EFENCED),
        ("f503", "00", Status.EIO),
        ("f503", "f803", Status.EIO),
    ],
)
def test_the_outer_status_counts_unless_it_is_ok(outer: str, inner: str, expected: Status) -> None:
    content = bytes.fromhex(f"08{inner} 1001 1800")
    data = bytes.fromhex(f"0a06 0803 1002 1801 10{outer} aa06") + bytes([len(content)]) + content
    assert decode_response(memoryview(data)).status is expected


# --- What is wrong


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("0a06 0803 1002 18", "no Request message"),
        ("0a05 0803 1002", "no Request message"),
        ("", "header: missing"),
        ("0a04 1002 1801", r"header\.version: missing"),
        ("0a04 0803 1801", r"header\.operation: missing"),
        ("0a04 0803 1002", r"header\.txn_id: missing"),
        ("0a06 0803 100d 1801", r"header\.operation: missing, or of no value that we know"),
        ("0a06 0804 1002 1801", r"header\.version: missing"),
        ("0a06 0803 1002 1801 aa0606 1000 1a00 2200", r"add\.ledger_id: missing"),
        ("0a06 0803 1002 1801 aa0606 0801 1000 2200", r"add\.master_key: missing"),
        ("0a06 0803 1002 1801 aa0606 0801 1000 1a00", r"add\.body: missing"),
        ("0a06 0803 1001 1801 a20602 0801", r"read\.entry_id: missing"),
        ("0a06 0803 1005 1801 b20603 0a0161", r"auth\.payload: missing"),
        ("0a06 0803 1005 1801 b20605 0a01ff 1200", "auth plugin is not UTF-8"),
        ("0a06 0803 1007 1801 c20602 0801 c20c03 0a0161", r"context\[0\]\.value: missing"),
    ],
)
def test_a_request_that_java_would_refuse_is_refused(data: str, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        decode_request(memoryview(bytes.fromhex(data)))


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ("0a06 0803 1002 1801", "status: missing"),
        ("0a06 0803 1002 1801 1001", "status: missing, or of no value that we know"),
        ("0a06 0803 1002 1801 1000", "ADD_ENTRY is EOK and has no content"),
        ("0a06 0803 1002 1801 1000 aa0604 1001 1800", r"add\.status: missing"),
        ("0a06 0803 1003 1801 1000", "RANGE_READ_ENTRY is EOK and has no content"),
        ("0a06 0803 1005 1801 1000 b20605 0a01ff 1200", "auth plugin is not UTF-8"),
    ],
)
def test_an_answer_that_java_would_refuse_is_refused(data: str, complaint: str) -> None:
    with pytest.raises(ProtocolViolation, match=complaint):
        decode_response(memoryview(bytes.fromhex(data)))


@pytest.mark.parametrize(
    "encode",
    [
        lambda: encode_request(2**64, StartTlsRequest()),
        lambda: encode_request(-1, StartTlsRequest()),
        lambda: encode_request(1, StartTlsRequest(), priority=2**32),
        lambda: encode_request(1, ReadLacRequest(LedgerId(2**63))),
        lambda: encode_request(1, AddRequest(LEDGER, ENTRY, b"", b"", write_flags=2**31)),
        lambda: encode_request(1, AuthMessage("\ud800")),
        lambda: encode_response(2**64, Status.EOK, StartTlsResponse()),
        lambda: encode_response(1, Status.EOK, AddResponse(LEDGER, EntryId(2**63))),
        lambda: encode_refusal(2**64, Operation.START_TLS, Status.EIO),
        lambda: encode_refusal(1, Operation.START_TLS, Status.EOK),
    ],
)
def test_what_a_message_cannot_hold_is_not_written(encode: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument):
        encode()


def test_keys_and_entries_stay_out_of_messages_for_people() -> None:
    for content in (FENCE, AddRequest(LEDGER, ENTRY, MASTER_KEY, b"hello"), AuthMessage("sasl", MASTER_KEY)):
        assert repr(MASTER_KEY) not in repr(content)
    with pytest.raises(InvalidArgument) as caught:
        encode_request(1, AddRequest(LEDGER, EntryId(2**63), MASTER_KEY, b"hello"))
    assert repr(MASTER_KEY) not in str(caught.value)


REQUEST_BODIES = st.builds(encode_request, TXN_IDS, REQUEST_CONTENTS).map(lambda frame: frame[4:])
RESPONSE_BODIES = st.builds(encode_response, TXN_IDS, STATUSES, RESPONSE_CONTENTS).map(lambda frame: frame[4:])


@many_examples
@given(st.one_of(st.binary(max_size=40), damaged(REQUEST_BODIES)))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    request = decoded_or_refused(decode_request, data)
    if request is not None and request.content is not None:
        again = encode_request(request.txn_id, request.content, priority=request.priority)
        assert decode_request(body(again)).content == request.content


@many_examples
@given(st.one_of(st.binary(max_size=40), damaged(RESPONSE_BODIES)))
def test_any_bytes_are_an_answer_or_refused(data: bytes) -> None:
    response = decoded_or_refused(decode_response, data)
    if response is not None and response.content is not None:
        again = encode_response(response.txn_id, response.status, response.content)
        assert decode_response(body(again)) == response


@some_examples
@given(st.binary(max_size=20))
def test_any_bytes_are_an_auth_message_or_refused(data: bytes) -> None:
    decoded_or_refused(decode_auth_message, data)
