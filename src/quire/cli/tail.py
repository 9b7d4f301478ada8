"""`quire tail`: the records of a stream as they come."""

import asyncio
import sys
import time
from collections.abc import Coroutine
from typing import Annotated, Any, Final

import typer

from quire.cli.output import checked, until_nobody_reads
from quire.cli.record_output import RecordOutput
from quire.cli.stdin import ctrl_c
from quire.cli.stream_options import JsonLines, Name, Timeout, Uri, on_streams
from quire.client import Client
from quire.errors import StreamSealed
from quire.stream.positions import parse_position
from quire.stream.reader import StreamReader

app = typer.Typer()

_BATCH_MAX: Final = 10_000
_COMMIT_S: Final = 1.0  # Between two writes of a subscription's position.


@app.command(
    epilog="Examples:  quire tail orders  ·  quire tail orders --from earliest --json  ·  "
    "quire tail orders --subscription billing"
)
def tail(
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="POSITION", help="Where to begin.")] = "latest",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, show_default="no end", help="Stop after N records.")
    ] = sys.maxsize,
    subscription: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="A name under which it is kept how far this reader came."),
    ] = None,
    dlsn: Annotated[bool, typer.Option("--dlsn", help="Print the place of each record before it, and a tab.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="End records with a NUL byte, not with a newline.")
    ] = False,
    uri: Uri = None,
    json: JsonLines = False,
    timeout: Timeout = 30.0,
) -> None:
    """Print the records of a stream as they come.

    Until Ctrl-C, or the end of a sealed stream. With --subscription the next one goes on where this one stopped.

    Positions: earliest, latest, 3:17:0, '>3:17:0' (behind it), tx:1700000000000, t:2026-01-01T00:00:00Z, t:2026-01-01.
    """
    output = RecordOutput(as_json=json, with_dlsn=dlsn, end=b"\0" if null else b"\n")
    begin = checked(lambda: parse_position(start), as_json=json, in_lines=True)

    async def work(client: Client) -> None:
        async with client.open_reader(name, start=begin, subscription=subscription) as reader:
            following = _Following(reader, output, commits=subscription is not None)
            try:
                await _until_ctrl_c(following.run(limit))
            finally:
                await following.commit()

    with until_nobody_reads():
        on_streams(uri, work, json=json, timeout_s=timeout, in_lines=True)


class _Following:
    """Prints what a reader gives, and keeps where that is."""

    def __init__(self, reader: StreamReader, output: RecordOutput, *, commits: bool) -> None:
        self._reader, self._output, self._commits = reader, output, commits
        self._printed, self._committed_s = reader.position, time.monotonic()

    async def run(self, limit: int) -> None:
        """Until there are `limit` records, or the stream ends."""
        left = limit
        while left > 0:
            try:
                records = await self._reader.read_many(min(left, _BATCH_MAX))
            except StreamSealed:
                return
            self._output.print(records, at_once=True)
            self._printed = self._reader.position  # Not before: what nobody got is to be read again.
            left -= len(records)
            if time.monotonic() - self._committed_s > _COMMIT_S:
                await self.commit()

    async def commit(self) -> None:
        """Keep where the subscription goes on, if there is one."""
        if self._commits:
            await self._reader.commit(self._printed)
            self._committed_s = time.monotonic()


async def _until_ctrl_c(work: Coroutine[Any, Any, None]) -> None:
    """Do `work` to its end, or until Ctrl-C."""
    with ctrl_c() as interrupted:
        working, waiting = asyncio.create_task(work), asyncio.create_task(interrupted.wait())
        try:
            await asyncio.wait([working, waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (working, waiting):
                task.cancel()
            await asyncio.wait([working, waiting])
    if not working.cancelled():
        working.result()
