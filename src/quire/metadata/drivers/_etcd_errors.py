"""What etcd's and gRPC's errors mean to us: the one place where they are translated.

The question that matters for a write is whether it may have happened. Only codes that etcd gives before it proposes a
request to the cluster say no; of all others, the ones not known here included, nothing can be said.
"""

from collections.abc import Sequence
from typing import Final

import grpc

from quire.errors import (
    DamagedMetadata,
    InvariantBroken,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    Refused,
    RequestTooLarge,
    SessionExpired,
)

_Code = grpc.StatusCode

# Worth another attempt when the request may be repeated: the server, or the way to it, failed; not the request.
PASSING_CODES: Final = frozenset(
    {_Code.ABORTED, _Code.CANCELLED, _Code.DEADLINE_EXCEEDED, _Code.INTERNAL, _Code.UNAVAILABLE, _Code.UNKNOWN}
)

_ACCESS_HINT: Final = "Quire does not authenticate to etcd: allow its address without a user, or turn etcd's auth off."


class Compacted(Exception):
    """The revision that was asked for is no longer in etcd's history."""


def unavailable(servers: Sequence[str], what: str) -> MetadataUnavailable:
    return MetadataUnavailable(f"etcd ({', '.join(servers)}): {what}", servers=tuple(servers))


def translate(error: grpc.aio.AioRpcError, servers: Sequence[str], *, repeatable: bool) -> Exception:
    """Our error for a failed call. `repeatable` says that the call changes nothing, or the same if sent twice."""
    code, details = error.code(), error.details() or ""
    said = f"etcd ({', '.join(servers)}): {details} ({code.name})"
    if code is _Code.OUT_OF_RANGE and "compacted" in details:
        return Compacted(details)
    if code is _Code.NOT_FOUND and "lease" in details:
        return SessionExpired("the session's lease is gone")
    if code in (_Code.UNAUTHENTICATED, _Code.PERMISSION_DENIED) or "user name is empty" in details:
        return Refused(said, hint=_ACCESS_HINT, servers=tuple(servers))
    if code is _Code.UNIMPLEMENTED:
        return Refused(said, hint="Is that an etcd server of version 3.4 or later?", servers=tuple(servers))
    if code is _Code.INVALID_ARGUMENT:
        return _invalid(details, said)
    if code is _Code.RESOURCE_EXHAUSTED:
        return _exhausted(details, said, servers)
    if code is _Code.DATA_LOSS:
        return DamagedMetadata(said, hint="etcd found its own data corrupt: see etcd's disaster recovery guide.")
    if code is _Code.FAILED_PRECONDITION or repeatable:
        return MetadataUnavailable(said, servers=tuple(servers))
    return MetadataOutcomeUnknown(said, servers=tuple(servers))


def _invalid(details: str, said: str) -> Exception:
    if "too many operations" in details:
        return RequestTooLarge(said, hint="etcd takes 128 comparisons in a transaction unless --max-txn-ops says more.")
    if "too large" in details:
        return RequestTooLarge(said)
    return InvariantBroken(f"a request that etcd does not understand: {said}")


def _exhausted(details: str, said: str, servers: Sequence[str]) -> Exception:
    if "space exceeded" in details:
        hint = "etcd's database is full: compact and defragment it, then disarm the NOSPACE alarm."
        return MetadataUnavailable(said, hint=hint, servers=tuple(servers))
    if "larger than max" in details:
        return RequestTooLarge(said)
    return MetadataUnavailable(said, servers=tuple(servers))
