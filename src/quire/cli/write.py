"""`quire write`: lines, files or JSON as records of a stream.

While a batch is on its way the next one is read: so a pipe is read as fast as records are acknowledged, and a line that
is typed leaves at once. There is never more than one batch under way. If it fails nothing was sent behind it, and what
is certainly in the stream is a beginning of the input.
"""

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import chain, groupby
from typing import Annotated, Any, Final, cast

import typer
from rich.markup import escape

from quire.cli.default_uri import stream_uri
from quire.cli.ledger_output import plural
from quire.cli.output import checked, counting, err, print_json
from quire.cli.record_input import Batch, RecordInput
from quire.cli.stdin import STDIN, ctrl_c
from quire.cli.stream_options import Json, Name, Timeout, Uri, copies, on_streams
from quire.client import Client
from quire.errors import QuireError
from quire.stream.client_api import StreamWriter
from quire.stream.settings import StreamOverrides
from quire.types import DLSN

app = typer.Typer()

_READY_RECORDS_MAX: Final = 20_000  # What is read while a batch is under way. A batch fails as a whole: not too many.
_READY_BYTES_MAX: Final = 4 << 20


@app.command(
    epilog="Examples:  seq 1000 | quire write numbers  ·  quire write logs --file app.log  ·  "
    "quire read a --json | quire write b --jsonl"
)
def write(
    name: Name,
    file: Annotated[
        list[str] | None,
        typer.Option("--file", "-f", metavar="FILE", help="Read this instead of standard input, which is -. Repeat."),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Make one record of each file, instead of its lines.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="Records end with a NUL byte, not with a newline.")
    ] = False,
    jsonl: Annotated[
        bool, typer.Option("--jsonl", help="Lines are JSON as `quire read --json` prints it, with txids.")
    ] = False,
    txid: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="Txid of the first record; the next has N+1. Default: the time."),
    ] = None,
    create: Annotated[bool, typer.Option(help="Whether to create the stream if it is missing.")] = True,
    ensemble: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Bookies that a segment is spread over.")
    ] = None,
    write_quorum: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many of them get each record.")
    ] = None,
    ack_quorum: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="How many must have it before it counts.")
    ] = None,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Append records to a stream: lines, files, or JSON.

    Each line of standard input becomes a record. When the command has ended without an error, all of them are on disk,
    and it says on standard error where that is.

    Ctrl-C ends the input; what was read before is written.
    """
    asked = {"ensemble": ensemble, "write_quorum": write_quorum, "ack_quorum": ack_quorum}
    quorums = cast(StreamOverrides, {setting: value for setting, value in asked.items() if value is not None})
    files = tuple(file or (STDIN,))
    records = checked(
        lambda: RecordInput(files, is_json=jsonl, is_whole=whole, ends_with_nul=null, first_txid=txid), as_json=json
    )

    async def work(client: Client) -> _Written:
        chosen = await copies(client, name) | quorums | {"create_if_missing": create}
        async with client.open_writer(name, **chosen) as writer:
            return await _write_all(writer, records, quiet=json)

    where = checked(lambda: stream_uri(uri, creating=create), as_json=json)
    written = on_streams(where, work, creating=create, json=json, timeout_s=timeout)
    if json:
        print_json({"stream": name, "uri": where, **written.facts()})
    else:
        err().print(f"{written.told()} to [bold]{escape(name)}[/] at {escape(where)}", soft_wrap=True)


class _Written:
    """What is certainly in the stream."""

    def __init__(self) -> None:
        self.records = 0
        self.first: DLSN | None = None
        self.last: DLSN | None = None

    def add(self, dlsns: Sequence[DLSN]) -> None:
        self.records += len(dlsns)
        self.first, self.last = self.first or dlsns[0], dlsns[-1]

    def facts(self) -> dict[str, Any]:
        first, last = self.first, self.last
        return {
            "records": self.records,
            "first_dlsn": None if first is None else str(first),
            "last_dlsn": None if last is None else str(last),
        }

    def told(self) -> str:
        """`3 records, up to 1:0:2, were written`, for people."""
        up_to = "" if self.last is None else f", up to {self.last},"
        return f"{plural(self.records, 'record', 'records')}{up_to} {'was' if self.records == 1 else 'were'} written"


async def _write_all(writer: StreamWriter, records: RecordInput, *, quiet: bool) -> _Written:
    """Append all there is. An error says what was written before it."""
    written, is_typed = _Written(), STDIN in records.files and sys.stdin is not None and sys.stdin.isatty()
    if is_typed and err().is_terminal and not quiet:
        err().print("[dim]A record for each line. Ctrl-D ends the input.[/]")
    try:
        with (
            counting(f"{writer.stream}: records written", quiet=quiet or is_typed) as counter,
            ctrl_c() as interrupted,
        ):
            async with aclosing(_Ahead(records.batches(interrupted))) as ready:
                while batches := await ready.next():
                    for batch in batches:
                        written.add(await writer.append_many(batch.payloads, txids=batch.txids))
                        counter.step(len(batch.payloads))
    except QuireError as error:
        error.add_note(f"{written.told()} before that.")
        error.facts |= {"written": written.records, "last_dlsn": None if written.last is None else str(written.last)}
        raise
    return written


class _Ahead:
    """Reads ahead while somebody else is busy, within bounds."""

    def __init__(self, batches: AsyncGenerator[Batch]) -> None:
        self._source = batches
        self._ready: list[Batch] = []
        self._records = self._bytes = 0
        self._came, self._room = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._fill(), name="read the input")

    async def _fill(self) -> None:
        try:
            async with aclosing(self._source) as batches:
                async for batch in batches:
                    self._ready.append(batch)
                    self._records += len(batch.payloads)
                    self._bytes += sum(map(len, batch.payloads))
                    self._came.set()
                    if self._records >= _READY_RECORDS_MAX or self._bytes >= _READY_BYTES_MAX:
                        self._room.clear()
                        await self._room.wait()
        finally:
            self._came.set()

    async def next(self) -> list[Batch]:
        """All that is ready, once there is any; nothing at the end. Raises what the source raised, after all that it
        gave before.
        """
        if not self._ready and not self._task.done():
            self._came.clear()
            await self._came.wait()
        if not self._ready:
            await self._task
        ready, self._ready = self._ready, []
        self._records = self._bytes = 0
        self._room.set()
        return _merged(ready)

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)  # Its error was raised, or another one came first.


def _merged(batches: list[Batch]) -> list[Batch]:
    """The same records in as few batches as can be: each is one wait."""
    found: list[Batch] = []
    for _, alike in groupby(batches, key=lambda batch: batch.txids is None):
        some = list(alike)
        payloads = list(chain.from_iterable(batch.payloads for batch in some))
        txids = None if some[0].txids is None else list(chain.from_iterable(batch.txids or () for batch in some))
        found.append(Batch(payloads, txids))
    return found
