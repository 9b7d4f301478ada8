"""A metadata transaction as one etcd transaction. Sans-IO.

Each operation is turned into requirements on the store as it is before the transaction; what earlier operations of the
same transaction change is worked in while they are collected.

Invariants:
  NothingWithoutSession  every transaction requires the session's key, which dies with the session's lease.
  NothingLate            it requires the key as it is now: once the key was written again, what was sent before is void.
  NoOrphans              a node is created below a persistent parent only, and deleted only when nothing is below it.
  OwnersStay             setting a node's data keeps its lease: an ephemeral node stays ephemeral.
  NoLargeComparisons     a range is compared only where a look before has found nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from quire.errors import InvariantBroken
from quire.metadata.driver import Create, Delete, Op, Set, Version, Written
from quire.metadata.drivers._etcd_keys import counter_key, key_of
from quire.metadata.drivers._etcd_requirements import (
    NEVER,
    Absent,
    AtVersion,
    Childless,
    CounterAt,
    Impossible,
    PersistentParent,
    Requirement,
    Seen,
    SessionAlive,
    SessionKey,
    Span,
    absent,
    ephemeral_parent,
    no_parent,
    not_empty,
)
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.metadata.paths import ROOT, parent_of
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """One etcd transaction, what to ask before it, and how to read the answers."""

    request: pb.TxnRequest
    ops: Sequence[Op]
    requirements: Sequence[Requirement]
    reads: Sequence[pb.RangeRequest]

    @property
    def writes(self) -> bool:
        return bool(self.request.success)

    @property
    def look(self) -> pb.TxnRequest | None:
        """What has to be read, and given to `on_look`, before the transaction may be sent; None if nothing.

        To compare a range, etcd loads all of it: an attempt to delete the root of a large tree could take the server
        down. So ranges are only compared after a look, itself limited to a few keys, has found them empty.
        """
        if any(compare.range_end or compare == NEVER for compare in self.request.compare):
            return pb.TxnRequest(success=self.request.failure)
        return None

    def on_look(self, answer: pb.TxnResponse) -> None:
        """Raise what refuses the operations in the state that the look has seen, if anything does."""
        error = self._refusal(Seen(self.reads, answer.responses))
        if error is not None:
            raise error

    def on_answer(self, answer: pb.TxnResponse) -> list[Written | None]:
        """One item for each operation, or the error that refused the first impossible one."""
        if not answer.succeeded:
            unexplained = f"etcd refused a transaction for no reason that its own answer shows: {self.ops!r}"
            raise self._refusal(Seen(self.reads, answer.responses)) or InvariantBroken(unexplained)
        version = Version(answer.header.revision)
        puts = (done.response_put for done in answer.responses if done.HasField("response_put"))
        written: list[Written | None] = []
        for op in self.ops:
            if isinstance(op, Create | Set):
                written.append(Written(op.path, version, writes=next(puts).prev_kv.version + 1))
            else:
                written.append(None)
        return written

    def _refusal(self, seen: Seen) -> Exception | None:
        errors = (requirement.refusal(seen) for requirement in self.requirements)
        return next((error for error in errors if error is not None), None)


def plan(ops: Sequence[Op], session: SessionKey) -> Plan:
    """The transaction that carries out `ops` in this session."""
    requirements = [SessionAlive(session), *_requirements(ops)]
    return _build(ops, requirements, [request for op in ops for request in _requests(op, session.lease)])


def plan_sequential(op: Create, session: SessionKey, *, number: int, counter: pb.KeyValue | None) -> Plan:
    """The transaction that creates `op` as number `number`, if the counter is still what was read."""
    numbered = Create(f"{op.path}{number:010d}", op.data, ephemeral=op.ephemeral)
    parent = parent_of(op.path)
    requirements: list[Requirement] = [SessionAlive(session)]
    if parent != ROOT:
        requirements.append(PersistentParent(numbered.path))
    requirements += [CounterAt(parent, counter), Absent(numbered.path)]
    advance = pb.PutRequest(key=counter_key(parent), value=b"%d" % (number + 1))
    return _build([numbered], requirements, [*_requests(numbered, session.lease), pb.RequestOp(request_put=advance)])


def _build(ops: Sequence[Op], requirements: Sequence[Requirement], success: Sequence[pb.RequestOp]) -> Plan:
    compares = [compare for requirement in requirements for compare in requirement.compares()]
    for start, end in merge(span for requirement in requirements for span in requirement.must_be_empty()):
        compares.append(absent(start, end))
    # etcd limits the number of comparisons, and of reads, to 128 unless configured otherwise: ask nothing twice.
    unique = {compare.SerializeToString(deterministic=True): compare for compare in compares}
    reads: dict[Span, pb.RangeRequest] = {}
    for requirement in requirements:
        read = requirement.read()
        if read is not None:
            reads[read.key, read.range_end] = read
    request = pb.TxnRequest(
        compare=unique.values(),
        success=success,
        failure=[pb.RequestOp(request_range=read) for read in reads.values()],
    )
    return Plan(request, ops, requirements, list(reads.values()))


def _requirements(ops: Sequence[Op]) -> Iterator[Requirement]:
    """What `ops` need, in their order. Ends early at an operation that earlier ones made impossible."""
    created: dict[str, bool] = {}  # Path → ephemeral.
    deleted: set[str] = set()
    for op in ops:
        if isinstance(op, Create):
            parent = parent_of(op.path)
            if parent in deleted or created.get(parent, False):
                error = no_parent(op.path) if parent in deleted else ephemeral_parent(op.path)
                yield Impossible(error)
                return
            if parent != ROOT and parent not in created:
                yield PersistentParent(op.path)
            yield Absent(op.path)
            created[op.path] = op.ephemeral
            continue
        yield AtVersion(op.path, op.expected)
        if isinstance(op, Delete):
            if any(parent_of(path) == op.path for path in created):
                yield Impossible(not_empty(op.path))
                return
            yield Childless(op.path, deleted)
            deleted.add(op.path)


def _requests(op: Op, lease: int) -> list[pb.RequestOp]:
    key = key_of(op.path)
    if isinstance(op, Create):
        return [pb.RequestOp(request_put=pb.PutRequest(key=key, value=op.data, lease=lease if op.ephemeral else 0))]
    if isinstance(op, Set):
        put = pb.PutRequest(key=key, value=op.data, ignore_lease=True, prev_kv=True)
        return [pb.RequestOp(request_put=put)]
    if isinstance(op, Delete):
        keys = (key, counter_key(op.path))  # A counter lives as long as its node, or it would outlive the cluster.
        return [pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=each)) for each in keys]
    return []


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same keys in as few ranges as possible, ascending."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
