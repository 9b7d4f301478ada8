"""What clients of one stream did and were told, while it happened. `tests/support/streams/proof.py` judges it.

Writers note each call and its answer, readers each record and position, whoever truncates what was asked and answered.
Nothing is judged by the clock: `moment` counts what was noted, and all that matters is what came before what. So the
same history serves simulations and real processes, as long as all notes come to one place in the order of events.

    call = history.on_called(handle, appender, [b"a", b"b"])
    call.on_acknowledged(await writer.append_many([b"a", b"b"]))

A handle is one writer from its opening to its end. Each payload is sent once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.codec.stream.records import LogRecord
from quire.codec.stream_metadata.segment import Segment
from quire.errors import Outcome, QuireError, WriterFenced
from quire.types import DLSN, Lssn

NEVER = 1 << 62  # The moment of what did not happen.


@dataclass
class Handle:
    """One writer, from the attempt to open it to its end."""

    history: "StreamHistory"
    number: int
    asked: int
    settled: int = NEVER  # When it was open, or could not be opened.
    fenced: int = NEVER  # When it was told first that another writer has taken over.

    def on_settled(self) -> None:
        self.settled = min(self.settled, self.history.tick())

    def on_fenced(self) -> None:
        self.fenced = min(self.fenced, self.history.tick())


@dataclass
class Call:
    """One append of some records, in one call."""

    history: "StreamHistory"
    handle: int
    appender: int
    payloads: list[bytes]
    txids: list[int] | None
    is_set: bool
    called: int
    ended: int = NEVER  # When its caller was told anything.
    dlsns: list[DLSN] | None = None
    refused: str = ""  # Why it is not in the stream.

    def on_acknowledged(self, dlsns: Sequence[DLSN]) -> None:
        self.dlsns, self.ended = list(dlsns), self.history.tick()

    def on_error(self, error: QuireError) -> None:
        self.ended = self.history.tick()
        if isinstance(error, WriterFenced):
            self.history.handles[self.handle].on_fenced()
        if error.outcome is Outcome.NOT_APPLIED:
            self.refused = repr(error)


@dataclass
class Reading:
    """One reader from its opening to its end."""

    history: "StreamHistory"
    name: str
    start: str | int  # "earliest", "latest", "place", or a txid.
    places: list[DLSN]  # Where it may begin if it begins at a place: of a lost commit nobody knows.
    skips: bool  # Whether what is truncated is to be passed over.
    asked: int
    opened: int = NEVER
    shown: list[tuple[int, LogRecord]] = field(default_factory=list)
    positions: list[tuple[int, int, DLSN]] = field(default_factory=list)  # When, after how many records, where.
    ended: int = NEVER
    error: QuireError | None = None
    saw_the_end: bool = False  # Of a sealed stream.

    def on_opened(self, position: DLSN) -> None:
        self.opened = self.history.tick()
        self.on_position(position)

    def on_shown(self, records: Sequence[LogRecord], position: DLSN) -> None:
        moment = self.history.tick()
        self.shown += [(moment, record) for record in records]
        self.on_position(position)

    def on_position(self, position: DLSN) -> None:
        self.positions.append((self.history.tick(), len(self.shown), position))

    def on_error(self, error: QuireError) -> None:
        self.error, self.ended = error, self.history.tick()

    def on_end_of_stream(self) -> None:
        self.saw_the_end, self.ended = True, self.history.tick()


@dataclass
class Truncation:
    """Somebody asked to hide all records before a place."""

    before: DLSN
    asked: int
    answered: int = NEVER


@dataclass(frozen=True)
class Change:
    """What a segment became; None once its node is gone."""

    moment: int
    wall_ms: int
    lssn: Lssn
    segment: Segment | None


@dataclass
class StreamHistory:
    """One stream as its clients saw it. `violations` is what was wrong at the very moment."""

    moment: int = 0
    handles: list[Handle] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    purged_below: int = 0  # The highest txid that a purge was asked for.
    retention_ms: int = 0  # Segments that are completed for longer may be purged; 0 for none.
    changes: list[Change] = field(default_factory=list)
    sealed: int = NEVER  # When somebody was told that the stream has ended.
    may_be_sealed: bool = False
    violations: list[str] = field(default_factory=list)
    _sent: set[bytes] = field(default_factory=set)

    def tick(self) -> int:
        self.moment += 1
        return self.moment

    # --- Writers

    def on_opening(self) -> Handle:
        """A writer is about to be opened."""
        handle = Handle(self, len(self.handles), self.tick())
        self.handles.append(handle)
        return handle

    def on_called(
        self,
        handle: int,
        appender: int,
        payloads: Sequence[bytes],
        *,
        txids: Sequence[int] | None = None,
        is_set: bool = False,
    ) -> Call:
        """About to be sent. Each payload may be sent once only, or `OnceEach` would prove nothing."""
        if not self._sent.isdisjoint(payloads):
            self.violations.append(f"the test sends {self._sent.intersection(payloads)} a second time")
        self._sent.update(payloads)
        given = None if txids is None else list(txids)
        call = Call(self, handle, appender, list(payloads), given, is_set, self.tick())
        self.calls.append(call)
        return call

    def on_seal_called(self) -> None:
        self.may_be_sealed = True

    def on_sealed(self) -> None:
        self.sealed = min(self.sealed, self.tick())

    # --- Readers

    def on_reading(self, name: str, start: str | int, *, places: Sequence[DLSN] = (), skips: bool = False) -> Reading:
        reading = Reading(self, name, start, list(places), skips, self.tick())
        self.readings.append(reading)
        return reading

    # --- Old records

    def on_truncate_called(self, before: DLSN) -> Truncation:
        truncation = Truncation(before, self.tick())
        self.truncations.append(truncation)
        return truncation

    def on_truncated(self, truncation: Truncation) -> None:
        truncation.answered = self.tick()

    def on_purge_called(self, min_txid: int) -> None:
        self.purged_below = max(self.purged_below, min_txid)

    # --- Segments

    def on_segment(self, lssn: Lssn, segment: Segment | None, *, wall_ms: int) -> None:
        """A segment's node was created, changed, or removed. Call it in the order of changes."""
        self.changes.append(Change(self.tick(), wall_ms, lssn, segment))

    def acknowledged(self) -> list[DLSN]:
        """The first place of each call that was acknowledged so far."""
        return [call.dlsns[0] for call in self.calls if call.dlsns]
