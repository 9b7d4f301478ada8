"""What the filters of a query say of places: which streams, segments and entries can hold a record that matches.

Spark offers filters that all have to hold, and checks every record again. So it is enough to leave out what cannot
match: a filter that is not understood leaves out nothing.

    txid, time         not decreasing along a stream: they are a range of places
    segment            a range of places, too
    entry              a range in each segment
    stream, dlsn       equal to one of some values
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from quire.codec.stream.limits import TXID_MAX
from quire.errors import InvalidArgument
from quire.spark.planning import Piece, StreamPlan
from quire.stream.start import Txid
from quire.types import DLSN, EntryId, Lssn, SlotId

_NUMBERS: Final = ("segment", "entry", "slot", "txid")
_MIN, _MAX = -TXID_MAX - 1, TXID_MAX
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: int = _MIN
    high: int = _MAX

    def also(self, other: "Range") -> "Range":
        return Range(max(self.low, other.low), min(self.high, other.high))


@dataclass(frozen=True)
class Bounds:
    """What all filters together leave."""

    txid: Range = Range()
    segment: Range = Range()
    entry: Range = Range()
    streams: frozenset[str] | None = None
    prefixes: tuple[str, ...] = ()
    places: tuple[DLSN, ...] | None = field(default=None)

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "Bounds":
        bounds = cls()
        for each in filters:
            bounds = _with(bounds, each)
        return bounds

    def has_stream(self, stream: str) -> bool:
        return (self.streams is None or stream in self.streams) and all(map(stream.startswith, self.prefixes))

    async def narrowed(self, plan: StreamPlan, begin: DLSN, end: DLSN) -> tuple[DLSN, DLSN]:
        """The part between `begin` and `end` that can match. The two may have crossed: then nothing does."""
        if self.segment.low > 0:
            begin = max(begin, DLSN(Lssn(self.segment.low), EntryId(0), SlotId(0)))
        if self.segment.high < _MAX:
            end = min(end, DLSN(Lssn(self.segment.high + 1), EntryId(0), SlotId(0)))
        if self.places is not None:
            begin = max([begin, *([min(self.places)] if self.places else [end])])
            end = min([end, *([max(self.places).next_slot()] if self.places else [begin])])
        if self.txid.low > self.txid.high:
            return begin, begin
        if self.txid.low > 0 and begin < end:
            begin = max(begin, await plan.find(Txid(self.txid.low), skip_truncated=True))
        if self.txid.high < _MAX and begin < end:
            end = min(end, await plan.find(Txid(self.txid.high + 1), skip_truncated=True))
        return begin, end

    def pieces(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Those pieces, or the parts of them, whose entries can match."""
        low, high = self.entry.low, self.entry.high
        found: list[Piece] = []
        for piece in pieces:
            begin = max(piece.begin, DLSN(piece.lssn, EntryId(max(0, low)), SlotId(0)))
            end = min(piece.end, DLSN(piece.lssn, EntryId(high + 1), SlotId(0)))
            if (begin, end) != (piece.begin, piece.end):
                if begin >= end:
                    continue
                cut = replace(piece, begin=begin, end=end)
                piece = replace(cut, size_bytes=piece.size_bytes * cut.entries // piece.entries)
            found.append(piece)
        return found


def _with(bounds: Bounds, each: Filter) -> Bounds:
    """`bounds`, and one filter more."""
    attribute: Sequence[str] = getattr(each, "attribute", ())
    name = attribute[0].lower() if len(attribute) == 1 else ""
    if name == "time":
        numbers = _range(each, _ms)
        return bounds if numbers is None else replace(bounds, txid=bounds.txid.also(numbers))
    if name in ("segment", "entry", "txid"):
        numbers = _range(each, _number)
        return bounds if numbers is None else replace(bounds, **{name: getattr(bounds, name).also(numbers)})
    if name == "stream":
        if isinstance(each, StringStartsWith):
            return replace(bounds, prefixes=(*bounds.prefixes, each.value))
        values = _values(each)
        if values is not None:
            known = frozenset(str(value) for value in values)
            return replace(bounds, streams=known if bounds.streams is None else bounds.streams & known)
    if name == "dlsn":
        values = _values(each)
        if values is not None:
            places = tuple(place for value in values if (place := _place(value)) is not None)
            return replace(bounds, places=places)
    return bounds


def _values(each: Filter) -> Sequence[Any] | None:
    """What a column has to be equal to; None if that is not what the filter says."""
    if isinstance(each, EqualTo | EqualNullSafe):
        return (each.value,)
    return each.value if isinstance(each, In) else None


def _range(each: Filter, number: Any) -> Range | None:
    """The numbers that a filter leaves; None for any. `number` gives the least whole one that is not below a value, and
    whether it is that value.
    """
    if isinstance(each, EqualNullSafe) and each.value is None:
        return None  # The records that match are those whose txid is no time: they may be anywhere.
    values = _values(each)
    if values is not None:
        known = [number(value) for value in values if value is not None]
        if any(value is None for value in known):
            return None
        exact = [value for value, is_exact in known if is_exact]
        return Range(min(exact), max(exact)) if exact else Range(0, -1)
    if not isinstance(each, GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    found = number(each.value)
    if found is None:
        return None
    value, is_exact = found
    if isinstance(each, GreaterThanOrEqual):
        return Range(low=value)
    if isinstance(each, GreaterThan):
        return Range(low=value + is_exact)
    return Range(high=value if isinstance(each, LessThanOrEqual) and is_exact else value - 1)


def _number(value: Any) -> tuple[int, bool] | None:
    return (value, True) if isinstance(value, int) and _MIN < value < _MAX else None


def _ms(value: Any) -> tuple[int, bool] | None:
    """The milliseconds of a moment. Spark hands on moments with a time zone, or those of this machine."""
    if not isinstance(value, datetime):
        return None
    moment = value if value.tzinfo is not None else value.astimezone()
    micros = (moment - _EPOCH) // (moment.resolution)
    return -(-micros // 1000), micros % 1000 == 0


def _place(value: Any) -> DLSN | None:
    try:
        return DLSN.parse(str(value))
    except InvalidArgument:
        return None
