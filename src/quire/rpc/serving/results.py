"""The one table between what proxies answer and what it means: results, errors, gRPC statuses, HTTP statuses.

A result names the error of Quire's own tree that the proxy met, so that a client raises the same, with the same hint; a
name that this client does not know stands for the error of its code. `applied` is what the error says of its outcome.
"""

from typing import Final, NamedTuple

import quire.errors as errors
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import Outcome, QuireError
from quire.types import DLSN, EntryId, Lssn, SlotId


class Meaning(NamedTuple):
    """What one code stands for."""

    code: int
    error: type[QuireError] | None
    grpc: str
    """The name of the status that a failed call ends with."""
    http: int


_TABLE: Final = (
    Meaning(pb.OK, None, "OK", 200),
    Meaning(pb.DUPLICATE, None, "OK", 200),
    Meaning(pb.NOT_OWNER, errors.NotOwner, "FAILED_PRECONDITION", 307),
    Meaning(pb.INVALID_REQUEST, errors.InvalidArgument, "INVALID_ARGUMENT", 400),
    Meaning(pb.UNAUTHENTICATED, errors.NotAuthenticated, "UNAUTHENTICATED", 401),
    Meaning(pb.REQUEST_DENIED, errors.RequestDenied, "PERMISSION_DENIED", 403),
    Meaning(pb.TOO_LARGE_RECORD, errors.RecordTooLarge, "INVALID_ARGUMENT", 413),
    Meaning(pb.QUOTA_EXCEEDED, errors.OverCapacity, "RESOURCE_EXHAUSTED", 429),
    Meaning(pb.OVER_CAPACITY, errors.OverCapacity, "RESOURCE_EXHAUSTED", 429),
    Meaning(pb.READ_OVERLOADED, errors.OverCapacity, "RESOURCE_EXHAUSTED", 429),
    Meaning(pb.INTERNAL, errors.ProxyFailed, "INTERNAL", 500),
    Meaning(pb.UNEXPECTED, errors.ProxyFailed, "INTERNAL", 500),
    Meaning(pb.NOT_IMPLEMENTED, errors.InvalidArgument, "UNIMPLEMENTED", 501),
    Meaning(pb.SERVICE_UNAVAILABLE, errors.ProxyDraining, "UNAVAILABLE", 503),
    Meaning(pb.STREAM_UNAVAILABLE, errors.StreamUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.STREAM_NOT_READY, errors.StreamUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.LOCKING, errors.StreamUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.REGION_UNAVAILABLE, errors.StreamUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.TOO_MANY_STREAMS, errors.TooManyStreams, "UNAVAILABLE", 503),
    Meaning(pb.METADATA_UNAVAILABLE, errors.MetadataUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.METADATA_DAMAGED, errors.DamagedMetadata, "INTERNAL", 500),
    Meaning(pb.WRITE_CANCELLED, errors.AppendCancelled, "UNAVAILABLE", 503),
    Meaning(pb.PREDECESSOR_FAILED, errors.AppendCancelled, "ABORTED", 503),
    Meaning(pb.TRANSMIT_ERROR, errors.AppendOutcomeUnknown, "UNAVAILABLE", 504),
    Meaning(pb.FLUSH_TIMEOUT, errors.AppendOutcomeUnknown, "UNAVAILABLE", 504),
    Meaning(pb.WRITE_EXCEPTION, errors.AppendOutcomeUnknown, "UNAVAILABLE", 504),
    Meaning(pb.FENCED, errors.WriterFenced, "UNAVAILABLE", 504),
    Meaning(pb.LOG_NOT_FOUND, errors.NoSuchStream, "NOT_FOUND", 404),
    Meaning(pb.LOG_EXISTS, errors.StreamExists, "ALREADY_EXISTS", 409),
    Meaning(pb.END_OF_STREAM, errors.StreamSealed, "FAILED_PRECONDITION", 410),
    Meaning(pb.TRANSACTION_OUT_OF_ORDER, errors.TxidOutOfOrder, "OUT_OF_RANGE", 409),
    Meaning(pb.CHECKSUM_FAILED, errors.ChecksumMismatch, "DATA_LOSS", 400),
    Meaning(pb.INVALID_STREAM_NAME, errors.InvalidName, "INVALID_ARGUMENT", 400),
    Meaning(pb.POSITION_TRUNCATED, errors.PositionTruncated, "OUT_OF_RANGE", 416),
    Meaning(pb.POSITION_IN_FUTURE, errors.PositionInFuture, "OUT_OF_RANGE", 416),
    Meaning(pb.VERSION_CONFLICT, errors.VersionConflict, "ABORTED", 409),
    Meaning(pb.LOCK_HELD, errors.StreamOwned, "FAILED_PRECONDITION", 409),
    Meaning(pb.LOCK_LOST, errors.LockLost, "ABORTED", 409),
    Meaning(pb.COLD_UNAVAILABLE, errors.ColdUnavailable, "UNAVAILABLE", 503),
    Meaning(pb.LOG_READ_ERROR, errors.DamagedEntry, "DATA_LOSS", 500),
)
_MEANINGS: Final = {meaning.code: meaning for meaning in _TABLE}

# The code of each error, and of those that are made from it: the nearest one in its line counts. Where several codes
# have one error, this says which of them is told.
_CODES: Final[dict[type[BaseException], int]] = {
    **{meaning.error: meaning.code for meaning in reversed(_TABLE) if meaning.error is not None},
    errors.CallerMistake: pb.INVALID_REQUEST,
    errors.RequestTooLarge: pb.TOO_LARGE_RECORD,
    errors.Refused: pb.INVALID_REQUEST,
    errors.SessionExpired: pb.METADATA_UNAVAILABLE,
    errors.NotBound: pb.METADATA_DAMAGED,
    errors.NotInitialised: pb.METADATA_DAMAGED,
    errors.LedgerFenced: pb.FENCED,
    errors.LedgerClosed: pb.WRITE_EXCEPTION,
    errors.Unavailable: pb.STREAM_UNAVAILABLE,
    errors.MetadataOutcomeUnknown: pb.METADATA_UNAVAILABLE,
    errors.ProxyOutcomeUnknown: pb.UNEXPECTED,
    errors.AppendCancelled: pb.WRITE_CANCELLED,
    errors.AppendOutcomeUnknown: pb.TRANSMIT_ERROR,
    errors.OverCapacity: pb.OVER_CAPACITY,
    errors.StreamUnavailable: pb.STREAM_UNAVAILABLE,
    errors.Damaged: pb.LOG_READ_ERROR,
    QuireError: pb.UNEXPECTED,
}


def meaning_of(code: int) -> Meaning:
    """Codes that this version does not know mean that something went wrong inside."""
    return _MEANINGS.get(code, _MEANINGS[pb.INTERNAL])


def result_of(error: QuireError, *, code: int | None = None) -> pb.Result:
    """What a proxy tells of an error. `code`, here or in its facts, where the error alone does not say enough."""
    found = code if code is not None else error.facts.get("code")
    if not isinstance(found, int):
        found = next(_CODES[kind] for kind in type(error).__mro__ if kind in _CODES)
    result = pb.Result(
        code=found,  # type: ignore[arg-type]  # Numbers are what the generated code takes.
        message=str(error),
        hint=error.hint,
        applied=pb.NO if error.outcome is Outcome.NOT_APPLIED else pb.UNKNOWN,
        error=type(error).__name__,
    )
    facts = error.facts
    owner, retry_after_ms, epoch, dlsn = map(facts.get, ("proxy", "retry_after_ms", "epoch", "earliest"))
    if isinstance(owner, pb.Owner):
        result.owner.CopyFrom(owner)
        result.owner_live = bool(facts.get("owner_live"))
    if isinstance(retry_after_ms, int):
        result.retry_after_ms = retry_after_ms
    if isinstance(epoch, int):
        result.epoch = epoch
    if isinstance(dlsn, DLSN):
        result.dlsn.CopyFrom(dlsn_message(dlsn))
    return result


def failure_inside() -> pb.Result:
    """For what is nobody's error but a bug's."""
    return pb.Result(
        code=pb.INTERNAL,
        message="the proxy failed to handle the call",
        hint="Its log says why.",
        applied=pb.UNKNOWN,
        error=errors.ProxyFailed.__name__,
    )


def error_of(result: pb.Result) -> QuireError:
    """The error that a result stands for. Its facts have the `result`, and what else the result names."""
    kind = getattr(errors, result.error, None)
    if not (isinstance(kind, type) and issubclass(kind, QuireError)):
        kind = meaning_of(result.code).error or errors.ProxyFailed
    facts: dict[str, object] = {"result": result}
    if result.HasField("owner"):
        facts |= {"proxy": result.owner, "owner_live": result.owner_live}
    if result.retry_after_ms:
        facts["retry_after_ms"] = result.retry_after_ms
    if result.epoch:
        facts["epoch"] = result.epoch
    if result.HasField("dlsn"):
        facts["earliest"] = dlsn_of(result.dlsn)
    return kind(result.message or kind.__name__, hint=result.hint, **facts)


def is_not_applied(error: QuireError) -> bool:
    """Whether it is certain that the call did nothing: the result's own word counts before the error's."""
    result = error.facts.get("result")
    if isinstance(result, pb.Result) and result.applied:
        return result.applied == pb.NO
    return error.outcome is Outcome.NOT_APPLIED


def dlsn_message(dlsn: DLSN) -> pb.Dlsn:
    return pb.Dlsn(lssn=dlsn.lssn, entry_id=dlsn.entry_id, slot_id=dlsn.slot_id)


def dlsn_of(message: pb.Dlsn) -> DLSN:
    return DLSN(Lssn(message.lssn), EntryId(message.entry_id), SlotId(message.slot_id))
