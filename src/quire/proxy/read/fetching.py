"""`Fetch`: what is at a place, as soon as there is enough of it, or when the caller has waited long enough.

A call that waits is a place on a lane, like any reader: it holds no entries.
"""

import asyncio
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, PositionTruncated
from quire.proxy.read.composing import Composed, EntryComposer, RecordComposer
from quire.proxy.read.cursor import Cursor, StreamEnded
from quire.proxy.read.frames import fetch_message, gap_message, progress_frame
from quire.proxy.read.openings import start_of
from quire.proxy.read.service import ReadService
from quire.rpc.serving.results import dlsn_message
from quire.stream.start import Start, Txid
from quire.types import DLSN

_BYTES_MAX: Final = 1 << 20  # For callers that do not say.


async def fetch(service: ReadService, request: pb.FetchRequest) -> pb.FetchResponse:
    """Raises what `open_reading` raises. Without a `max_wait_ms` it does not wait."""
    if request.format not in (pb.ENTRIES, pb.RECORDS):
        raise InvalidArgument(f"this proxy does not know format {request.format}")
    settings, loop = service.settings, asyncio.get_running_loop()
    bytes_max = min(request.max_bytes or _BYTES_MAX, settings.frame_bytes_max)
    bytes_min = min(max(1, request.min_bytes), bytes_max)
    deadline_s = loop.time() + min(request.max_wait_ms / 1000, settings.fetch_wait_s_max)
    begin = start_of(request.start)
    found = await service.openings.find(
        request.stream, begin, skip_truncated=request.truncated == pb.SKIP, incarnation=request.incarnation
    )
    cursor = service.lanes_of(found).cursor(found.at)
    event = pb.ReadEvent(opened=pb.ReadOpened(resolved=dlsn_message(found.at), incarnation=str(found.incarnation)))
    if isinstance(begin, DLSN) and found.has_gap:
        event.gap.CopyFrom(gap_message(begin, found.at))
    try:
        composed = await _await_some(service, request, cursor, begin, bytes_min, bytes_max, deadline_s)
    except StreamEnded:
        event.end_of_stream = True
        composed = None
    except PositionTruncated:
        if isinstance(begin, DLSN):
            raise
        composed = None  # It was purged while we looked: the next call finds what is left.
    finally:
        cursor.close()
    head = event.SerializeToString()
    if composed is None:
        return fetch_message(head + progress_frame(cursor.position, cursor.mode), cursor.position)
    service.metrics.on_sent(entries=composed.entries, size_bytes=len(composed.message))
    message = fetch_message(head + composed.message, composed.after)
    message.event.end_of_stream = message.event.end_of_stream or composed.ends
    return message


async def _await_some(
    service: ReadService,
    request: pb.FetchRequest,
    cursor: Cursor,
    begin: Start,
    bytes_min: int,
    bytes_max: int,
    deadline_s: float,
) -> Composed | None:
    records: RecordComposer | None = None
    if request.format == pb.RECORDS:
        txid_min = begin.value if isinstance(begin, Txid) else None
        records = RecordComposer(cursor.home.records, start=cursor.position, txid_min=txid_min)
    with service.parked():
        while True:
            is_enough = await cursor.wait(deadline_s=deadline_s, bytes_min=bytes_min)
            if records is not None:
                composed = records.compose(cursor, bytes_max, request.max_records)
            else:
                composed = EntryComposer().compose(cursor, bytes_max)
            if composed is not None and (composed.ends or not composed.is_empty):
                return composed
            if composed is not None:
                cursor.advance(composed.after, composed.taken_bytes)  # Nothing that a client sees.
            elif not is_enough:
                return None
