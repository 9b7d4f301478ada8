"""One read: at most so many records from a position on, and where to go on.

A reader is opened for each, since the gateway keeps nothing between requests. It knows when it has all that is
confirmed, so a read that does not want to wait still gets what is there.
"""

import asyncio
from typing import Final, NamedTuple

from quire.codec.stream.records import LogRecord
from quire.errors import StreamSealed
from quire.proxy.gateway.clients import Reader, StreamClient
from quire.proxy.gateway.queries import Fetch
from quire.stream.decoding import place_after
from quire.types import DLSN

PATIENCE_S: Final = 10.0  # For what is known to be there, but does not come.
_MORE_S: Final = 0.05  # For what follows the first records, if there is any: it is on its way most likely.
_LOOK_S: Final = 0.005  # Whether a reader has all there is, is looked at so often at first,
_LOOK_S_MAX: Final = 0.1  # and so often in the end.


class Fetched(NamedTuple):
    records: list[LogRecord]
    next: DLSN
    is_end: bool


async def fetch(client: StreamClient, stream: str, wanted: Fetch, *, read_ahead_bytes_max: int) -> Fetched:
    """Raises what opening a reader and reading raise."""
    async with client.open_reader(
        stream,
        start=wanted.start,
        skip_truncated=wanted.skip_truncated,
        read_ahead_bytes_max=read_ahead_bytes_max,
    ) as reader:
        taken, size = list[LogRecord](), 0
        try:
            found = await _first(reader, wanted)
            while found:
                for record in found:
                    size += len(record.payload)
                    if taken and size > wanted.max_bytes:
                        return Fetched(taken, place_after(taken[-1]), is_end=False)
                    taken.append(record)
                if len(taken) >= wanted.limit or size >= wanted.max_bytes:
                    break
                more_s = 0 if reader.statistics().at_tail else _MORE_S
                found = await reader.read_many(wanted.limit - len(taken), timeout_s=more_s)
        except StreamSealed:
            return Fetched(taken, reader.position, is_end=True)
        return Fetched(taken, reader.position, is_end=False)


async def _first(reader: Reader, wanted: Fetch) -> list[LogRecord]:
    """The first records; none if none came in time, and there were none to begin with."""
    if wanted.wait_s > 0 and (found := await reader.read_many(wanted.limit, timeout_s=wanted.wait_s)):
        return found
    loop, look_s = asyncio.get_running_loop(), _LOOK_S
    ends_s = loop.time() + PATIENCE_S
    while loop.time() < ends_s:
        if found := await reader.read_many(wanted.limit, timeout_s=look_s):
            return found
        if reader.statistics().at_tail:
            break
        look_s = min(look_s * 2, _LOOK_S_MAX)
    return []
