"""What a write proxy tells clients: errors that say whether something happened, and messages for what did.

Invariant: an error for a batch that was never handed to a writer says that nothing was applied, whatever its cause was.
"""

import re
from collections.abc import Iterable
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import AppendCancelled, AppendOutcomeUnknown, Outcome, QuireError, StreamUnavailable, WriterFenced
from quire.ledger.writing.errors import again
from quire.rpc.serving.results import result_of
from quire.stream.dlsn_runs import PlacedRun

_CLIENT_ID = re.compile(r"1;(-?[0-9]+);(.+):([0-9]{1,5})", re.ASCII)
_RANDOM_PART = re.compile(r"-[0-9a-f]{12}$", re.ASCII)
_APPLIED: Final = pb.Result(code=pb.OK, applied=pb.YES)
_DUPLICATE: Final = pb.Result(code=pb.DUPLICATE, applied=pb.YES, message="it was stored before")


# --- Errors


def unavailable(stream: str, cause: QuireError, *, retry_after_ms: int = 50) -> QuireError:
    """For what was never handed to a writer, because of `cause`."""
    if cause.outcome is Outcome.NOT_APPLIED and not isinstance(cause, AppendCancelled):
        return again(cause)
    error = StreamUnavailable(
        f"stream {stream!r} cannot be written here now: {cause}", stream=stream, retry_after_ms=retry_after_ms
    )
    error.__cause__ = cause
    return error


def not_ready(stream: str, why: str, *, retry_after_ms: int) -> StreamUnavailable:
    """It will be served by this very proxy."""
    return StreamUnavailable(
        f"stream {stream!r} is not ready: {why}",
        stream=stream,
        retry_after_ms=retry_after_ms,
        code=int(pb.STREAM_NOT_READY),
    )


def predecessor_failed(stream: str) -> AppendCancelled:
    return AppendCancelled(
        f"a batch before this one failed, so this one was not stored in stream {stream!r}",
        hint="Send it again with a higher attempt, behind those before it.",
        stream=stream,
        code=int(pb.PREDECESSOR_FAILED),
    )


def unknown(stream: str, cause: QuireError) -> QuireError:
    """For what was handed to a writer, or is the same as something that was."""
    kind = WriterFenced if isinstance(cause, WriterFenced) else AppendOutcomeUnknown
    error = kind(f"whether these records are in stream {stream!r} is not known: {cause}", stream=stream)
    error.__cause__ = cause
    return error


def lock_address(client_id: str) -> str | None:
    """The `host:port` of the proxy that holds a lock under this name; None if it is no proxy's.

    Underscores stand as hyphens in it: names of locks cannot have them.
    """
    found = _CLIENT_ID.fullmatch(_RANDOM_PART.sub("", client_id))
    return None if found is None else f"{found[2]}:{found[3]}"


def lock_client_id(shard: int, owner: pb.Owner) -> str:
    """What a proxy's client id has to be, so that others find it through its locks."""
    return f"1;{shard};{owner.host}:{owner.port}"


# --- Messages


def placed(runs: Iterable[PlacedRun]) -> list[pb.Placed]:
    return [
        pb.Placed(first=pb.Dlsn(lssn=lssn, entry_id=entry_id, slot_id=slot), count=records)
        for lssn, entry_id, slot, records in runs
    ]


def batch_result(error: QuireError | None, *, is_duplicate: bool) -> pb.Result:
    if error is not None:
        return result_of(error)
    return _DUPLICATE if is_duplicate else _APPLIED
