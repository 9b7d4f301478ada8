"""`python -m benchmarks stream --segments`: what a long chain of segments costs whoever opens a reader.

The chain is made up: one ledger with one record is real, and the node of every segment names it. The record has the
highest of all txids, so that no reader passes it by. What is measured is what a reader does before its first record: it
lists the segments, looks at those that matter, and opens one ledger. How the segments came to be does not matter.
"""

import gc
import os
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.stream.own import quire_namespace
from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.codec.stream_metadata.tree import encode_max_lssn, encode_max_txid
from quire.metadata import ANY_VERSION, Create, Set
from quire.stream.namespace import Namespace
from quire.stream.nodes import StreamNodes
from quire.stream.start import Start, Txid
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId
from quire.values import dataclass

OPEN_S_MAX: Final = 2.0  # What we promise of a stream with 10,000 segments.
_NODES_AT_ONCE: Final = 500
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class OpenedReader:
    """One opening of a reader, and another one of the same kind to look at memory, which takes longer."""

    start: str
    segments: int
    open_s: float
    first_record_s: float | None
    """From before it was opened. None for a reader that waits for what is to come."""
    cpu_s: float
    held_bytes: int
    """What Python keeps while the reader is open."""
    peak_bytes: int
    """The most that Python had meanwhile."""
    process_growth_bytes: int
    """By how much the process grew at the first opening."""

    @property
    def is_in_time(self) -> bool:
        return max(self.open_s, self.first_record_s or 0) < OPEN_S_MAX


async def bench_segments(segments: int, folder: str, on_step: Callable[[], None]) -> list[OpenedReader]:
    """Open readers on a stream with one segment, and on one with so many."""
    async with quire_namespace(folder, bookies=1) as (namespace, _):
        first = await _write_segment(namespace, "short", txid=segments)
        await _make_chain(namespace, "long", first, segments)
        on_step()
        starts: Sequence[tuple[str, str, int, Start]] = [
            ("earliest", "short", 1, "earliest"),
            ("earliest", "long", segments, "earliest"),
            ("txid", "long", segments, Txid(segments // 2 + 1)),
            ("latest", "long", segments, "latest"),
        ]
        await _open(namespace, "short", "earliest")  # So that what the first one does for all is not counted.
        found = []
        for shown, stream, count, start in starts:
            found.append(await _measured(namespace, stream, start, shown, count))
            on_step()
        return found


# --- The chain


async def _write_segment(namespace: Namespace, stream: str, *, txid: int) -> Segment:
    async with namespace.open_writer(stream, ensemble=1, write_quorum=1, ack_quorum=1) as writer:
        await writer.append(b"x" * 100, txid=txid)
    [stored] = await StreamNodes(namespace.context.store, namespace.context.paths(stream)).all_segments()
    return stored.segment


async def _make_chain(namespace: Namespace, stream: str, like: Segment, segments: int) -> None:
    """Segments 1 to `segments`, each with a txid of its own: its number."""
    await namespace.create_stream(stream)
    store, paths = namespace.context.store, namespace.context.paths(stream)
    for begin in range(1, segments + 1, _NODES_AT_ONCE):
        part = [
            _segment(Lssn(lssn), like.ledger_id) for lssn in range(begin, min(begin + _NODES_AT_ONCE, segments + 1))
        ]
        await store.transaction(
            *(Create(paths.segment(segment_name(segment)), encode_segment(segment)) for segment in part)
        )
    await store.transaction(
        Set(paths.segments, encode_max_lssn(Lssn(segments)), ANY_VERSION),
        Set(paths.max_txid, encode_max_txid(segments), ANY_VERSION),
    )


def _segment(lssn: Lssn, ledger: LedgerId) -> Segment:
    done = Completion(last_txid=lssn, completed_at_ms=lssn, record_count=1, last_dlsn=DLSN(lssn, EntryId(0), SlotId(0)))
    return Segment.begun(lssn, ledger, first_txid=lssn).completed(done, start_sequence_id=lssn - 1)


# --- Opening


async def _measured(namespace: Namespace, stream: str, start: Start, shown: str, segments: int) -> OpenedReader:
    gc.collect()
    before_bytes, cpu_s = _process_bytes(), time.process_time()
    open_s, first_record_s, _ = await _open(namespace, stream, start)
    cpu_s, growth_bytes = time.process_time() - cpu_s, _process_bytes() - before_bytes
    gc.collect()
    tracemalloc.start()
    try:
        _, _, held_bytes = await _open(namespace, stream, start)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return OpenedReader(shown, segments, open_s, first_record_s, cpu_s, held_bytes, peak_bytes, max(0, growth_bytes))


async def _open(namespace: Namespace, stream: str, start: Start) -> tuple[float, float | None, int]:
    """The seconds until it was open, and until the first record came; and the traced bytes then."""
    began_s = time.perf_counter()
    async with namespace.open_reader(stream, start=start) as reader:
        open_s, first_record_s = time.perf_counter() - began_s, None
        if start != "latest":
            await anext(reader)
            first_record_s = time.perf_counter() - began_s
        if tracemalloc.is_tracing():
            gc.collect()
        return open_s, first_record_s, tracemalloc.get_traced_memory()[0]


def _process_bytes() -> int:
    """What this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
