"""Places and facts of streams as messages, and back."""

from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.segment import Truncation
from quire.errors import InvalidArgument
from quire.rpc.serving.results import dlsn_message, dlsn_of
from quire.stream.info import SegmentInfo, StreamInfo
from quire.stream.start import Start, Time, Txid
from quire.types import DLSN, LedgerId, Lssn

_EDGES: Final = {"earliest": pb.EARLIEST, "latest": pb.LATEST}
_TRUNCATIONS: Final = {
    pb.ACTIVE: Truncation.ACTIVE,
    pb.PARTIALLY_TRUNCATED: Truncation.PARTIALLY_TRUNCATED,
    pb.TRUNCATED: Truncation.TRUNCATED,
}


def position_message(start: Start) -> pb.Position:
    """Raises `InvalidArgument` for what is no place to begin at."""
    if isinstance(start, DLSN):
        return pb.Position(dlsn=dlsn_message(start))
    if isinstance(start, Txid):
        return pb.Position(txid=start.value)
    if isinstance(start, Time):
        return pb.Position(time_ms=start.ms)
    if start in _EDGES:
        return pb.Position(edge=_EDGES[start])
    raise InvalidArgument(f"a reader cannot begin at {start!r}", hint="Give a DLSN, txid, time, or 'earliest'.")


def info_of(message: pb.GetStreamResponse) -> StreamInfo:
    return StreamInfo(
        message.stream,
        tuple(map(_segment_of, message.segments)),
        first_dlsn=dlsn_of(message.first_dlsn) if message.HasField("first_dlsn") else None,
        first_txid=message.first_txid if message.HasField("first_txid") else None,
        last_dlsn=dlsn_of(message.last_dlsn) if message.HasField("last_dlsn") else None,
        last_txid=message.last_txid if message.HasField("last_txid") else None,
        record_count=message.record_count,
        is_sealed=message.is_sealed,
        owner=message.owner or None,
        subscriptions=positions_of(message),
    )


def positions_of(message: pb.GetStreamResponse) -> dict[str, DLSN | None]:
    """Of each subscription, by name."""
    return {each.name: dlsn_of(each.position) if each.HasField("position") else None for each in message.subscriptions}


def _segment_of(message: pb.Segment) -> SegmentInfo:
    return SegmentInfo(
        Lssn(message.lssn),
        LedgerId(message.ledger_id),
        is_completed=message.is_completed,
        truncation=_TRUNCATIONS[message.truncation],
        first_txid=message.first_txid,
        last_txid=message.last_txid if message.HasField("last_txid") else None,
        first_dlsn=dlsn_of(message.first_dlsn) if message.HasField("first_dlsn") else None,
        last_dlsn=dlsn_of(message.last_dlsn) if message.HasField("last_dlsn") else None,
        record_count=message.record_count if message.HasField("record_count") else None,
        completed_at_ms=message.completed_at_ms if message.HasField("completed_at_ms") else None,
        is_hot=not message.is_gone_from_bookies,
        cold_file=message.cold_file if message.HasField("cold_file") else None,
        size_bytes=message.size_bytes if message.HasField("size_bytes") else None,
    )
