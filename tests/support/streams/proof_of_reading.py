"""The part of the proof that is about readers: each saw a piece of the stream, and the piece that it asked for."""

import bisect

from quire.codec.stream_metadata.segment import Segment
from quire.errors import PositionInFuture, PositionTruncated
from quire.stream.truncation import first_place
from quire.types import DLSN, Lssn
from tests.support.streams.history import NEVER, Reading, StreamHistory
from tests.support.streams.stored import StoredStream


class Hidden:
    """How much of the stream was hidden from readers at each moment: truncated or purged, always from the front."""

    def __init__(self, history: StreamHistory, stored: StoredStream) -> None:
        self._stored = stored
        self._moments: list[int] = [0]
        self._edges: list[DLSN] = [first_place(Lssn(1))]
        self.completed: dict[Lssn, int] = {}  # When each segment was.
        known: dict[Lssn, Segment | None] = {}
        for change in history.changes:
            known[change.lssn] = segment = change.segment
            if segment is not None and segment.completion is not None:
                self.completed.setdefault(change.lssn, change.moment)
            edge = _edge(known)
            if edge != self._edges[-1]:
                assert edge > self._edges[-1], "TruncatedAsAsked: hidden records came back"
                self._moments.append(change.moment)
                self._edges.append(edge)

    def edge(self, moment: int) -> DLSN:
        """The first place that was not hidden."""
        return self._edges[bisect.bisect_right(self._moments, moment) - 1]

    def index(self, moment: int) -> int:
        """How many records were hidden."""
        return self._stored.index(self.edge(moment))


def _edge(known: dict[Lssn, Segment | None]) -> DLSN:
    edge = first_place(min(known, default=Lssn(1)))
    for lssn in sorted(known):
        segment = known[lssn]
        if segment is None or segment.is_truncated:
            edge = first_place(Lssn(lssn + 1))
        elif segment.is_partially_truncated:
            return segment.min_active
        else:
            return edge
    return edge


def check_readings(history: StreamHistory, stored: StoredStream, hidden: Hidden) -> None:
    called = {payload: call.called for call in history.calls for payload in call.payloads}
    for reading in history.readings:
        _Proof(reading, stored, hidden, called).check()


class _Proof:
    def __init__(self, reading: Reading, stored: StoredStream, hidden: Hidden, called: dict[bytes, int]) -> None:
        self._reading, self._stored, self._hidden, self._called = reading, stored, hidden, called

    def check(self) -> None:
        reading, stored = self._reading, self._stored
        positions = list(reading.positions)
        following: int | None = None  # The index of the record to come; None while nothing was shown.
        for place, (moment, record) in enumerate(reading.shown):
            while positions and positions[0][1] <= place:
                self._check_position(*positions.pop(0), following)
            index = stored.index(record.dlsn)
            assert stored.records[index : index + 1] == [record], self._wrong(
                f"AllReadersAgree: it was shown {record}, which is not in the stream", moment
            )
            self._check_next(index, following, moment)
            following = index + 1
        for position in positions:
            self._check_position(*position, following)
        if reading.saw_the_end:
            assert stored.is_sealed, self._wrong("SealedIsTheEnd: it came to an end, and there is none")
            if following is not None:
                assert following == len(stored.records), self._wrong("SealedIsTheEnd: it ended too soon")
        self._check_error()

    def _check_next(self, index: int, following: int | None, moment: int) -> None:
        shown = self._stored.records[index].dlsn
        if following is None:
            low, high = self._first(moment)
            assert low <= index <= high, self._wrong(
                f"AllReadersAgree: it began with {shown}, record {index}, and should with {low} to {high}", moment
            )
            return
        assert index >= following, self._wrong(f"AllReadersAgree: it was shown {shown} again, or out of order", moment)
        if index > following:
            may_skip = self._reading.skips and index <= self._hidden.index(moment)
            assert may_skip, self._wrong(
                f"AllReadersAgree: it missed {index - following} records before {shown}", moment
            )

    def _first(self, moment: int) -> tuple[int, int]:
        """Between which records the first one lies that was shown, or is to come, at this moment."""
        reading, stored, hidden = self._reading, self._stored, self._hidden
        before, now = hidden.index(reading.asked), hidden.index(moment)
        if reading.start == "latest":
            return self._first_of_latest(before, now)
        if reading.start == "place":
            wanted = [stored.index(place) for place in reading.places]
            low, high = min(wanted), max(wanted)
            if not reading.skips:
                return max(low, before), high
        else:
            low = high = 0 if reading.start == "earliest" else stored.index_of_txid(int(reading.start))
        return max(low, before), max(high, now)

    def _first_of_latest(self, before: int, now: int) -> tuple[int, int]:
        """Nothing of a segment that was completed by then; and all that was appended since."""
        reading, stored = self._reading, self._stored
        old = [lssn for lssn, moment in self._hidden.completed.items() if moment < reading.asked]
        low = stored.index(first_place(Lssn(max(old, default=0) + 1)))
        since = (place for place, record in enumerate(stored.records) if self._called[record.payload] > reading.opened)
        return max(low, before), max(next(since, len(stored.records)), now)

    def _check_position(self, moment: int, _: int, position: DLSN, following: int | None) -> None:
        index = self._stored.index(position)
        if following is None:
            low, high = self._first(moment)
            if isinstance(self._reading.start, int):
                low = 0  # Of what it looks for nothing may be confirmed yet: then it waits at the end for it.
        else:
            low, high = following, max(following, self._hidden.index(moment) if self._reading.skips else 0)
        assert low <= index <= high, self._wrong(
            f"PositionsSurvive: its position {position} is before record {index}, and should be before {low} to {high}",
            moment,
        )

    def _check_error(self) -> None:
        reading = self._reading
        assert not isinstance(reading.error, PositionInFuture), self._wrong(f"PositionsSurvive: {reading.error}")
        if isinstance(reading.error, PositionTruncated):
            at = reading.positions[-1][2] if reading.positions else min(reading.places)
            assert at < self._hidden.edge(reading.ended), self._wrong(
                f"TruncatedAsAsked: nothing is hidden at {at}: {reading.error}"
            )

    def _wrong(self, what: str, moment: int = NEVER) -> str:
        reading = self._reading
        start = reading.places if reading.start == "place" else reading.start
        return f"{what} ({reading.name}, from {start}, asked at {reading.asked}, now {moment}, skips={reading.skips})"
