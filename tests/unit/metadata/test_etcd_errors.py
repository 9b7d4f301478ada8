"""Which of our errors each of etcd's answers becomes, and above all: which leave it open whether a write happened."""

import grpc
import pytest

from quire.errors import (
    DamagedMetadata,
    InvariantBroken,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    Outcome,
    QuireError,
    Refused,
    RequestTooLarge,
    SessionExpired,
)
from quire.metadata.drivers._etcd_errors import PASSING_CODES, Compacted, translate

CODE = grpc.StatusCode
SERVERS = ["one:2379", "two:2379"]

REFUSED_BEFORE_ANYTHING_HAPPENED = [
    (CODE.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Compacted),
    (CODE.NOT_FOUND, "etcdserver: requested lease not found", SessionExpired),
    (CODE.UNAUTHENTICATED, "etcdserver: invalid auth token", Refused),
    (CODE.PERMISSION_DENIED, "etcdserver: permission denied", Refused),
    (CODE.INVALID_ARGUMENT, "etcdserver: user name is empty", Refused),
    (CODE.UNIMPLEMENTED, "unknown service etcdserverpb.KV", Refused),
    (CODE.INVALID_ARGUMENT, "etcdserver: too many operations in txn request", RequestTooLarge),
    (CODE.INVALID_ARGUMENT, "etcdserver: request is too large", RequestTooLarge),
    (CODE.RESOURCE_EXHAUSTED, "grpc: received message larger than max (3 vs. 2)", RequestTooLarge),
    (CODE.INVALID_ARGUMENT, "etcdserver: duplicate key given in txn request", InvariantBroken),
    (CODE.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", MetadataUnavailable),
    (CODE.RESOURCE_EXHAUSTED, "etcdserver: too many requests", MetadataUnavailable),
    (CODE.FAILED_PRECONDITION, "etcdserver: not leader", MetadataUnavailable),
    (CODE.DATA_LOSS, "etcdserver: corrupt cluster", DamagedMetadata),
]


def failed(code: grpc.StatusCode, details: str = "") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


@pytest.mark.parametrize(("code", "details", "kind"), REFUSED_BEFORE_ANYTHING_HAPPENED)
@pytest.mark.parametrize("repeatable", [True, False])
def test_a_refusal_says_that_nothing_happened(
    code: grpc.StatusCode, details: str, kind: type[Exception], repeatable: bool
) -> None:
    error = translate(failed(code, details), SERVERS, repeatable=repeatable)
    assert type(error) is kind
    if isinstance(error, QuireError):
        assert error.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("code", sorted(PASSING_CODES, key=str))
def test_a_lost_answer_leaves_a_write_open_and_a_read_merely_unavailable(code: grpc.StatusCode) -> None:
    write = translate(failed(code, "gone"), SERVERS, repeatable=False)
    read = translate(failed(code, "gone"), SERVERS, repeatable=True)
    assert type(write) is MetadataOutcomeUnknown
    assert type(read) is MetadataUnavailable
    for error in (write, read):
        assert "one:2379, two:2379" in str(error)
        assert "gone" in str(error)


def test_whatever_is_not_known_to_be_harmless_leaves_a_write_open() -> None:
    refusing = {code for code, _, _ in REFUSED_BEFORE_ANYTHING_HAPPENED} - {CODE.NOT_FOUND, CODE.OUT_OF_RANGE}
    for code in set(CODE) - {CODE.OK} - refusing:
        assert type(translate(failed(code), SERVERS, repeatable=False)) is MetadataOutcomeUnknown, code


def test_a_full_database_and_closed_doors_come_with_advice() -> None:
    full = translate(failed(CODE.RESOURCE_EXHAUSTED, "mvcc: database space exceeded"), SERVERS, repeatable=False)
    assert isinstance(full, MetadataUnavailable)
    assert "full" in full.hint
    refused = translate(failed(CODE.PERMISSION_DENIED), SERVERS, repeatable=False)
    assert isinstance(refused, Refused)
    assert "authenticate" in refused.hint
