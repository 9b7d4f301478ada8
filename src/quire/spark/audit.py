"""Every replica of every entry of streams, read from its own bookie and verified: a Spark job.

    report = audit(spark, "distributedlog://zk1:2181/ns", ["orders"])
    for damage in report.damage: print(damage.stream, damage.lssn, damage.ledger, damage.bookie, damage.problem)

The driver lists the segments and cuts them into pieces of about `PIECE_BYTES`; each task checks one
(`quire.ledger.repair.replica_reads`). A segment in progress is checked as far as it is confirmed. One that is only in
cold storage has no copies on bookies, and is passed by. Nothing is changed: what to do about a bad copy is for the
operator and for re-replication.

Invariants:
  LostIsTold       a hot segment without a ledger is lost, whenever its ledger went: it is named. It is passed by only
                   if the metadata, read again after the ledger was missed, has it no longer, or elsewhere, or truncated
                   as a whole.
  NamesEveryCopy   each copy that is missing, damaged, different or out of reach is in exactly one `Damage` of the
                   report. Copies that follow each other on one bookie, with the same problem, share one.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from quire.codec.stream_metadata.segment import Truncation
from quire.errors import NoSuchLedger, NoSuchStream
from quire.ledger.repair.replica_reads import UNREACHABLE, BadCopy, ReplicaCheck, check_replicas
from quire.metadata import StoredLedger
from quire.spark.client_cache import Access, borrowed, direct_uri
from quire.spark.tasks import OnProgress, Piece, run_tasks
from quire.stream.namespace import Namespace
from quire.types import EntryId, LedgerId, LedgerState
from quire.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_BYTES: Final = 64 << 20
PIECE_ENTRIES_MAX: Final = 50_000
_READ_TIMEOUT_S: Final = 30.0  # A bookie that many tasks ask at once may take its time.
_AT_ONCE_MAX: Final = 16  # Ledgers that are looked at together.
_MORE_LOOKS: Final = 5  # At segments without ledgers.
_LOOK_AGAIN_S: Final = 0.4

SegmentKey: TypeAlias = tuple[str, int, int]
"""Stream, LSSN and ledger."""


@dataclass(frozen=True, slots=True)
class Damage:
    """Copies on one bookie with the same problem: those of the entries from `first_entry` to `last_entry`."""

    stream: str
    lssn: int
    ledger: int
    bookie: str
    problem: str
    first_entry: int
    last_entry: int
    copies: int
    detail: str


@dataclass(frozen=True, slots=True)
class LostSegment:
    """A segment that should be on bookies, and whose ledger does not exist."""

    stream: str
    lssn: int
    ledger: int
    cold_file: str | None = None
    """Where its records are nevertheless, if it is archived."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit saw. `copies` are those that are intact, and `payload_bytes` what they hold."""

    streams: tuple[str, ...]
    segments: int
    gone_segments: int
    """That were purged, or dropped after archiving, while the audit ran."""
    entries: int
    copies: int
    payload_bytes: int
    damage: tuple[Damage, ...]
    lost: tuple[LostSegment, ...] = ()

    @property
    def is_sound(self) -> bool:
        return not self.damage and not self.lost

    @property
    def bad_copies(self) -> int:
        return sum(each.copies for each in self.damage)

    @property
    def unreachable_bookies(self) -> list[str]:
        return sorted({each.bookie for each in self.damage if each.problem == UNREACHABLE})


def audit(
    spark: "SparkSession", uri: str, streams: Sequence[str] | None = None, *, on_progress: OnProgress | None = None
) -> AuditReport:
    """Check streams, or all that there are. Raises `NoSuchStream`, and what opening the log raises."""
    with borrowed(uri) as access:
        plan = access.run(make_plan(access.namespace, streams))
        results = run_tasks(spark, direct_uri(uri), check_piece, plan.pieces, on_progress=on_progress)
        done = list(zip(plan.pieces, results, strict=True))
        missed = {*plan.missed, *(_identity(piece) for piece, result in done if result["gone"])}
        lost = access.run(lost_among(access.namespace, missed))
    checked = [(piece, result) for piece, result in done if not result["gone"]]
    return AuditReport(
        streams=tuple(plan.streams),
        segments=len({_identity(piece) for piece, _ in checked}),
        gone_segments=len(missed) - len(lost),
        entries=sum(result["entries"] for _, result in checked),
        copies=sum(result["copies"] for _, result in checked),
        payload_bytes=sum(result["payload_bytes"] for _, result in checked),
        damage=tuple(_damage(piece, each) for piece, result in checked for each in result["bad"]),
        lost=tuple(lost),
    )


def _identity(piece: Piece) -> SegmentKey:
    return piece["stream"], piece["lssn"], piece["ledger"]


def _damage(piece: Piece, told: Mapping[str, Any]) -> Damage:
    return Damage(piece["stream"], piece["lssn"], piece["ledger"], **told)


# --- In the driver


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The work of an audit."""

    streams: list[str]
    pieces: list[Piece]
    missed: list[SegmentKey]
    """Hot segments whose ledgers were not there."""


async def make_plan(namespace: Namespace, streams: Sequence[str] | None) -> AuditPlan:
    """What there is to check. Raises `NoSuchStream` for one that was asked for."""
    plan = AuditPlan(list(dict.fromkeys(streams)) if streams else await namespace.list_streams(), [], [])
    for name in plan.streams:
        try:
            segments = (await namespace.stream_info(name)).segments
        except NoSuchStream:
            if streams:
                raise
            continue  # Deleted since it was listed.
        hot = [segment for segment in segments if segment.is_hot]
        for place in range(0, len(hot), _AT_ONCE_MAX):
            some = hot[place : place + _AT_ONCE_MAX]
            ends = await asyncio.gather(*(_extent(namespace, name, each.ledger_id) for each in some))
            for segment, extent in zip(some, ends, strict=True):
                if extent is None:
                    plan.missed.append((name, segment.lssn, segment.ledger_id))
                    continue
                told = {"stream": name, "lssn": segment.lssn, "ledger": segment.ledger_id}
                plan.pieces.extend({**told, "first": first, "end": end} for first, end in _parts(*extent))
    return plan


async def _extent(namespace: Namespace, stream: str, ledger_id: LedgerId) -> tuple[int, int] | None:
    """Entries and payload bytes of a ledger; bytes are 0 where they are not known. None if it does not exist."""
    ledgers, password = namespace.context.ledgers, namespace.settings_for(stream).password
    try:
        stored = await ledgers.ledgers_metadata.read(ledger_id)
        if stored.metadata.state is LedgerState.CLOSED:
            return stored.metadata.last_entry_id + 1, stored.metadata.length
        async with ledgers.open(ledger_id, password=password, recover=False) as reader:
            return reader.last_add_confirmed + 1, reader.length
    except NoSuchLedger:
        return None


async def lost_among(namespace: Namespace, missed: Collection[SegmentKey]) -> list[LostSegment]:
    """Which of these segments, whose ledgers do not exist, should have them.

    A purge deletes the ledger first and the node a moment later. So they are looked at for a while, until they go.
    """
    lost = await _still_hot(namespace, missed)
    for _ in range(_MORE_LOOKS):
        if not lost:
            break
        await namespace.context.runtime.clock.sleep(_LOOK_AGAIN_S)
        lost = await _still_hot(namespace, missed)
    return lost


async def _still_hot(namespace: Namespace, missed: Collection[SegmentKey]) -> list[LostSegment]:
    found = [each for stream in sorted({key[0] for key in missed}) for each in await _hot(namespace, stream)]
    return [each for each in found if (each.stream, each.lssn, each.ledger) in missed]


async def _hot(namespace: Namespace, stream: str) -> list[LostSegment]:
    """The segments that bookies should have, as they are called if they do not."""
    try:
        segments = (await namespace.stream_info(stream)).segments
    except NoSuchStream:
        return []  # Deleted meanwhile, with all that it had.
    return [
        LostSegment(stream, each.lssn, each.ledger_id, each.cold_file)
        for each in segments
        if each.is_hot and each.truncation is not Truncation.TRUNCATED  # A purge of that one was cut off.
    ]


def _parts(entries: int, size_bytes: int) -> Iterator[tuple[int, int]]:
    each = min(PIECE_ENTRIES_MAX, entries * PIECE_BYTES // size_bytes if size_bytes else PIECE_ENTRIES_MAX)
    for first in range(0, entries, max(1, each)):
        yield first, min(entries, first + max(1, each))


# --- In the workers


def check_piece(access: Access, piece: Piece) -> Piece:
    """One task: all copies of a range of entries."""
    try:
        found = access.run(_check(access.namespace, piece))
    except NoSuchLedger:
        return {"gone": True}  # Its segment is purged or dropped, its stream deleted, or it is lost: see `lost_among`.
    return {
        "gone": False,
        "entries": found.entries,
        "copies": found.copies,
        "payload_bytes": found.payload_bytes,
        "bad": list(_runs(found.bad)),
    }


async def _check(namespace: Namespace, piece: Piece) -> ReplicaCheck:
    ledgers = namespace.context.ledgers
    stored: StoredLedger = await ledgers.ledgers_metadata.read(LedgerId(piece["ledger"]))
    return await check_replicas(
        ledgers,
        stored,
        EntryId(piece["first"]),
        EntryId(piece["end"]),
        password=namespace.settings_for(piece["stream"]).password,
        timeout_s=_READ_TIMEOUT_S,
    )


def _runs(bad: Iterable[BadCopy]) -> Iterator[dict[str, Any]]:
    """Copies of entries that follow each other, on one bookie and with one problem, as one."""
    by_kind: dict[tuple[str, str], list[BadCopy]] = {}
    for each in bad:
        by_kind.setdefault((each.bookie, each.problem), []).append(each)
    for (bookie, problem), copies in by_kind.items():
        place = 0
        while place < len(copies):
            end = place + 1
            while end < len(copies) and copies[end].entry_id - copies[end - 1].entry_id == 1:
                end += 1
            yield {
                "bookie": bookie,
                "problem": problem,
                "first_entry": copies[place].entry_id,
                "last_entry": copies[end - 1].entry_id,
                "copies": end - place,
                "detail": copies[place].detail,
            }
            place = end
