"""Copying completed segments to cold storage, and back: Spark jobs over `quire.stream.archiving`.

    report = archive(spark, uri, "s3://bucket/archive", ["orders"], drop=DropPolicy(older_than_s=86400))
    for report in follow(spark, uri, "hdfs://namenode:8020/archive?http=9870"): ...
    restore(spark, uri, ["orders"])

The driver lists the segments that are not archived; each task copies one to a file and reads it back; the driver
records what is done, and then drops what the policy lets go. So segments are copied by as many machines as Spark has,
and the metadata has one writer.

Invariants:
  PublishedBySteps   what a round of tasks has written is recorded before the next round begins: whatever ends the job
                     costs the work of one round.
  OneFailsAlone      a segment that cannot be copied is in the report, and keeps no other from being archived. So is a
                     stream that cannot be looked at, or of which nothing can be dropped.
"""

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from quire.codec.cold import ColdSegment, decode_cold, encode_cold
from quire.codec.stream_metadata.segment import decode_segment, encode_segment
from quire.cold.stores import normal_root
from quire.errors import (
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    NoSuchStream,
    QuireError,
    SessionExpired,
)
from quire.spark.client_cache import Access, borrowed, direct_uri
from quire.spark.tasks import OnProgress, Piece, run_tasks, try_tasks
from quire.stream.archiving import archivable_segments, archive_segment, publish_archived
from quire.stream.cold_moves import DropPolicy, drop_hot, restore_segments
from quire.stream.namespace import Namespace
from quire.stream.settings import StreamSettings
from quire.values import dataclass

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUND_SEGMENTS_MAX: Final = 64
_OF_ALL: Final = (MetadataUnavailable, MetadataOutcomeUnknown, SessionExpired)  # Errors that are not one stream's.
FOLLOW_INTERVAL_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Archived:
    """A segment that is in cold storage now."""

    stream: str
    lssn: int
    records: int
    size_bytes: int
    """Of its file."""
    file: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A segment that is not, or a stream for which a step could not be done, and why."""

    stream: str
    lssn: int | None
    """None if it is about the stream as a whole."""
    error: QuireError
    step: Literal["archive", "drop"] = "archive"


@dataclass(frozen=True, slots=True)
class ArchiveReport:
    """What came of one pass over the streams."""

    archived: tuple[Archived, ...]
    failed: tuple[Failed, ...]
    dropped: tuple[tuple[str, int], ...]
    """Segments that bookies have no more, as stream and LSSN."""

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self.archived)


def archive(
    spark: "SparkSession",
    uri: str,
    root: str,
    streams: Sequence[str] | None = None,
    *,
    drop: DropPolicy | None = None,
    on_progress: OnProgress | None = None,
) -> ArchiveReport:
    """Archive all completed segments of streams, or of all that there are; then drop hot copies, if a policy is given.

    Raises `InvalidUri` for a root that is none, `NoSuchStream`, and what opening the log raises.
    """
    root = _checked_root(root)
    archived: list[Archived] = []
    failed: list[Failed] = []
    dropped: list[tuple[str, int]] = []
    with borrowed(uri) as access:
        names = access.run(_names(access.namespace, streams))
        pieces = access.run(_pieces(access.namespace, names, root, failed, is_chosen=bool(streams)))
        for begin in range(0, len(pieces), ROUND_SEGMENTS_MAX):
            some = pieces[begin : begin + ROUND_SEGMENTS_MAX]
            seen = _within(on_progress, begin, len(pieces))
            for piece, result in zip(
                some, try_tasks(spark, direct_uri(uri), copy, some, on_progress=seen), strict=True
            ):
                told = result if isinstance(result, QuireError) else _publish(access, piece["stream"], result)
                if isinstance(told, QuireError):
                    failed.append(Failed(piece["stream"], piece["lssn"], told))
                elif told is not None:
                    archived.append(told)
        if drop is not None:
            dropped = access.run(_drop(access.namespace, names, drop, failed))
    return ArchiveReport(tuple(archived), tuple(failed), tuple(dropped))


def follow(
    spark: "SparkSession",
    uri: str,
    root: str,
    streams: Sequence[str] | None = None,
    *,
    drop: DropPolicy | None = None,
    interval_s: float = FOLLOW_INTERVAL_S,
    stop: threading.Event | None = None,
    on_progress: OnProgress | None = None,
) -> Iterator[ArchiveReport]:
    """Archive segments as they complete, until `stop` is set: a report after each pass that did something.

    Streams that come later are archived, too, if none were named. What is unavailable for now is tried again in the
    next pass.
    """
    stop = stop or threading.Event()
    while not stop.is_set():
        try:
            report = archive(spark, uri, root, streams, drop=drop, on_progress=on_progress)
        except QuireError as error:
            if not error.retryable:
                raise
        else:
            if report.archived or report.failed or report.dropped:
                yield report
        stop.wait(interval_s)


def restore(
    spark: "SparkSession", uri: str, streams: Sequence[str], *, on_progress: OnProgress | None = None
) -> dict[str, list[int]]:
    """Make all segments of streams hot again that only cold storage has. Returns which ones, for each stream.

    Segments of one stream come back one after the other, the newest first, as a stream has no gaps; streams come back
    in parallel.
    """
    pieces = [{"stream": stream} for stream in dict.fromkeys(streams)]
    with borrowed(uri):
        results = run_tasks(spark, direct_uri(uri), bring_back, pieces, on_progress=on_progress)
    return {piece["stream"]: result["segments"] for piece, result in zip(pieces, results, strict=True)}


def _checked_root(root: str) -> str:
    normal = normal_root(root)
    if normal.startswith("memory:"):
        raise InvalidArgument(
            f"{root!r} is the memory of one process, and Spark has many", hint="Give a file:, s3: or hdfs: URI."
        )
    return normal


def _within(on_progress: OnProgress | None, begin: int, total: int) -> OnProgress | None:
    if on_progress is None:
        return None
    return lambda done, _: on_progress(begin + done, total)


# --- In the driver


async def _names(namespace: Namespace, streams: Sequence[str] | None) -> list[str]:
    return list(dict.fromkeys(streams)) if streams else await namespace.list_streams()


async def _pieces(
    namespace: Namespace, names: Sequence[str], root: str, failed: list[Failed], *, is_chosen: bool
) -> list[Piece]:
    """One for each segment to archive. A stream whose nodes are damaged is added to `failed`."""
    pieces: list[Piece] = []
    for name in names:
        try:
            segments = await archivable_segments(namespace.context, name)
        except NoSuchStream:
            if is_chosen:
                raise
            continue  # Deleted since it was listed.
        except _OF_ALL:
            raise
        except QuireError as error:
            failed.append(Failed(name, None, error))
            continue
        told = [encode_segment(segment).decode() for segment in segments]
        pieces += [
            {"stream": name, "root": root, "lssn": segment.lssn, "segment": text}
            for segment, text in zip(segments, told, strict=True)
        ]
    return pieces


def _publish(access: Access, stream: str, told: Any) -> Archived | QuireError | None:
    """None if somebody else archived it meanwhile, or it is gone."""
    cold: ColdSegment = decode_cold(told["cold"].encode())
    try:
        is_ours = access.run(publish_archived(access.namespace.context, stream, cold))
    except QuireError as error:
        return error
    file = cold.file
    return Archived(stream, cold.lssn, file.rows, file.size_bytes, f"{file.root}/{file.name}") if is_ours else None


async def _drop(
    namespace: Namespace, names: Sequence[str], policy: DropPolicy, failed: list[Failed]
) -> list[tuple[str, int]]:
    """A stream of which something could not be dropped is added to `failed`: the next pass finds what is left."""
    dropped: list[tuple[str, int]] = []
    for name in names:
        try:
            settings = namespace.settings_for(name)
            gone = await drop_hot(namespace.context, name, policy, settings=settings)
            dropped += [(name, lssn) for lssn in gone]
        except NoSuchStream:
            continue
        except QuireError as error:
            failed.append(Failed(name, None, error, step="drop"))
            if isinstance(error, _OF_ALL):
                break  # It would be the same with the others.
    return dropped


# --- In the workers


def copy(access: Access, piece: Piece) -> Piece:
    """One task: a segment becomes a file. Nobody knows of it before the driver records it."""
    segment = decode_segment(piece["segment"].encode())
    stream, context = piece["stream"], access.namespace.context
    settings = access.namespace.settings_for(stream)
    cold = access.run(archive_segment(context, stream, segment, piece["root"], settings=settings))
    return {"cold": encode_cold(cold).decode()}


def bring_back(access: Access, piece: Piece) -> Piece:
    """One task: all cold segments of a stream get ledgers again."""
    settings = _fitting(access.namespace, piece["stream"])
    return {"segments": access.run(restore_segments(access.namespace.context, piece["stream"], settings=settings))}


def _fitting(namespace: Namespace, stream: str) -> StreamSettings:
    """As many copies as usual; on one machine as many as it has bookies."""
    settings = namespace.settings_for(stream)
    bookies = len(namespace.context.ledgers.pool.writable)
    return settings.with_copies_at_most(bookies) if namespace.uri.is_local and bookies else settings
