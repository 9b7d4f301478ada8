"""What must hold before a metadata transaction, in terms that etcd can check and explain. Sans-IO.

A requirement knows three things: the comparisons that let etcd check it, what to read when the comparisons failed, and
which error it then explains. The reads happen in the same step as the comparisons, so the first requirement that is
not met by what they saw is the reason of the failure.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

from quire.errors import (
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    QuireError,
    SessionExpired,
    VersionConflict,
)
from quire.metadata.driver import ANY_VERSION, Version
from quire.metadata.drivers._etcd_keys import counter_key, key_of, range_below, session_key
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.metadata.paths import parent_of
from quire.values import dataclass

Span = tuple[bytes, bytes]  # [start, end); an empty end stands for the one key at the start.

NEVER: Final = pb.Compare(key=b"quire/", target=pb.Compare.VERSION, result=pb.Compare.LESS, version=0)


def exists(key: bytes) -> pb.Compare:
    return pb.Compare(key=key, target=pb.Compare.CREATE, result=pb.Compare.GREATER, create_revision=0)


def at_revision(key: bytes, revision: int) -> pb.Compare:
    """The key was last written at this revision; at 0 it does not exist."""
    return pb.Compare(key=key, target=pb.Compare.MOD, result=pb.Compare.EQUAL, mod_revision=revision)


def absent(key: bytes, range_end: bytes = b"") -> pb.Compare:
    """With `range_end`: no key of the range exists. (etcd compares each one there is; none fails if there is none.)"""
    equal = pb.Compare.EQUAL
    return pb.Compare(key=key, range_end=range_end, target=pb.Compare.CREATE, result=equal, create_revision=0)


@dataclass(slots=True)
class SessionKey:
    """The key that a session's writes depend on, as its client last knew it: who moves it shuts out older writes."""

    lease: int
    revision: int

    @property
    def key(self) -> bytes:
        return session_key(self.lease)

    def move(self) -> pb.TxnRequest:
        """Give the key a new revision, unless it has another one already: then tell which."""
        put = pb.PutRequest(key=self.key, ignore_lease=True)
        return pb.TxnRequest(
            compare=[at_revision(self.key, self.revision)],
            success=[pb.RequestOp(request_put=put)],
            failure=[pb.RequestOp(request_range=pb.RangeRequest(key=self.key, keys_only=True))],
        )

    def on_moved(self, answer: pb.TxnResponse) -> None:
        if answer.succeeded:
            self.on_seen(answer.header.revision)
        for stored in [] if answer.succeeded else answer.responses[0].response_range.kvs:
            self.on_seen(stored.mod_revision)

    def on_seen(self, revision: int) -> None:
        self.revision = max(revision, self.revision)  # Answers may overtake one another.


class SessionMoved(Exception):
    """The session's key has moved since the write was planned, so it was not carried out: plan it anew."""

    def __init__(self, revision: int) -> None:
        super().__init__("the session's key has moved")
        self.revision = revision


class CounterMoved(Exception):
    """Another client took the next sequential number first; `stored` is the counter now."""

    def __init__(self, stored: pb.KeyValue | None) -> None:
        super().__init__("the sequence counter has moved")
        self.stored = stored


class Seen:
    """What the failure branch read."""

    def __init__(self, reads: Sequence[pb.RangeRequest], answers: Iterable[pb.ResponseOp]) -> None:
        self._found: dict[Span, list[pb.KeyValue]] = {
            (read.key, read.range_end): list(answer.response_range.kvs)
            for read, answer in zip(reads, answers, strict=True)
        }

    def node(self, key: bytes) -> pb.KeyValue | None:
        found = self._found[key, b""]
        return found[0] if found else None

    def keys(self, span: Span) -> list[bytes]:
        return [stored.key for stored in self._found[span]]


class Requirement(Protocol):
    """Something that must hold before the transaction."""

    def compares(self) -> list[pb.Compare]:
        """What etcd has to check. Emptiness of ranges is collected separately: see `must_be_empty`."""

    def must_be_empty(self) -> list[Span]:
        """Ranges without any key."""

    def read(self) -> pb.RangeRequest | None:
        """What has to be read to know whether this is what failed."""

    def refusal(self, seen: Seen) -> Exception | None:
        """The error that explains the failure; None if this requirement is met."""


class _OneKey:
    """Shared by the requirements that look at one key."""

    key: bytes

    def must_be_empty(self) -> list[Span]:
        return []

    def read(self) -> pb.RangeRequest | None:
        return pb.RangeRequest(key=self.key, keys_only=True)


class SessionAlive(_OneKey):
    def __init__(self, session: SessionKey) -> None:
        self._lease, self._revision, self.key = session.lease, session.revision, session.key

    def compares(self) -> list[pb.Compare]:
        return [at_revision(self.key, self._revision)]

    def refusal(self, seen: Seen) -> Exception | None:
        stored = seen.node(self.key)
        if stored is None:
            return SessionExpired(f"session {self._lease:x} has expired", session=self._lease)
        return None if stored.mod_revision == self._revision else SessionMoved(stored.mod_revision)


class Absent(_OneKey):
    def __init__(self, path: str) -> None:
        self._path, self.key = path, key_of(path)

    def compares(self) -> list[pb.Compare]:
        return [absent(self.key)]

    def refusal(self, seen: Seen) -> QuireError | None:
        if seen.node(self.key) is None:
            return None
        return NodeExists(f"the metadata node {self._path!r} exists already", path=self._path)


class PersistentParent(_OneKey):
    def __init__(self, path: str) -> None:
        self._path, self._parent = path, parent_of(path)
        self.key = key_of(self._parent)

    def compares(self) -> list[pb.Compare]:
        no_lease = pb.Compare(key=self.key, target=pb.Compare.LEASE, result=pb.Compare.EQUAL, lease=0)
        return [exists(self.key), no_lease]

    def refusal(self, seen: Seen) -> QuireError | None:
        stored = seen.node(self.key)
        if stored is None:
            return no_parent(self._path)
        return ephemeral_parent(self._path) if stored.lease else None


class AtVersion(_OneKey):
    def __init__(self, path: str, expected: Version) -> None:
        self._path, self._expected, self.key = path, expected, key_of(path)

    def compares(self) -> list[pb.Compare]:
        if self._expected == ANY_VERSION:
            return [exists(self.key)]
        if self._expected == 0:
            return [NEVER]  # To etcd, revision 0 means that the key does not exist; as our version it never matches.
        return [at_revision(self.key, int(self._expected))]

    def refusal(self, seen: Seen) -> QuireError | None:
        stored = seen.node(self.key)
        if stored is None:
            return NoSuchNode(f"there is no metadata node {self._path!r}", path=self._path)
        if self._expected in (ANY_VERSION, stored.mod_revision):
            return None
        return VersionConflict(
            f"{self._path!r} has version {stored.mod_revision}, not {self._expected}",
            path=self._path,
            stored=stored.mod_revision,
        )


class Childless:
    """Nothing is below the node but what the same transaction deletes before it."""

    def __init__(self, path: str, deleted: Iterable[str]) -> None:
        self._path, self._span = path, range_below(path)
        start, end = self._span
        self._deleted = sorted(key for key in map(key_of, deleted) if start <= key < end)

    def compares(self) -> list[pb.Compare]:
        return []

    def must_be_empty(self) -> list[Span]:
        return gaps(self._span, self._deleted)

    def read(self) -> pb.RangeRequest | None:
        start, end = self._span
        return pb.RangeRequest(key=start, range_end=end, limit=len(self._deleted) + 1, keys_only=True)

    def refusal(self, seen: Seen) -> QuireError | None:
        if set(seen.keys(self._span)) <= set(self._deleted):
            return None
        return not_empty(self._path)


class Impossible:
    """What no state of the store can fulfil: the transaction contradicts itself here."""

    def __init__(self, error: QuireError) -> None:
        self._error = error

    def compares(self) -> list[pb.Compare]:
        return [NEVER]

    def must_be_empty(self) -> list[Span]:
        return []

    def read(self) -> pb.RangeRequest | None:
        return None

    def refusal(self, seen: Seen) -> QuireError | None:
        return self._error


class CounterAt(_OneKey):
    def __init__(self, parent: str, stored: pb.KeyValue | None) -> None:
        self.key = counter_key(parent)
        self._revision = stored.mod_revision if stored else 0

    def compares(self) -> list[pb.Compare]:
        return [at_revision(self.key, self._revision)]

    def read(self) -> pb.RangeRequest | None:
        return pb.RangeRequest(key=self.key)

    def refusal(self, seen: Seen) -> CounterMoved | None:
        stored = seen.node(self.key)
        return None if (stored.mod_revision if stored else 0) == self._revision else CounterMoved(stored)


def gaps(span: Span, keys: Iterable[bytes]) -> list[Span]:
    """What is left of `span` when single `keys`, ascending and inside it, are taken out."""
    start, end = span
    left: list[Span] = []
    for key in keys:
        if start < key:
            left.append((start, key))
        start = key + b"\x00"
    if start < end:
        left.append((start, end))
    return left


def no_parent(path: str) -> NoSuchNode:
    parent = parent_of(path)
    return NoSuchNode(f"there is no parent {parent!r} to create {path!r} in", path=path, parent=parent)


def ephemeral_parent(path: str) -> ParentIsEphemeral:
    parent = parent_of(path)
    return ParentIsEphemeral(f"{parent!r} is ephemeral and cannot have children", path=path, parent=parent)


def not_empty(path: str) -> NodeNotEmpty:
    return NodeNotEmpty(f"{path!r} has children", path=path)
