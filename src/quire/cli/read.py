"""`quire read`: the records of a stream that are there now.

At the end of a stream a reader waits for more, so this command has to know where that is. It looks once, before it
reads: what was acknowledged before that is printed, and under a writer that never rests the command ends all the same.
"""

import sys
from itertools import takewhile
from typing import Annotated, Final, NamedTuple

import typer
from rich.markup import escape

from quire.cli.output import checked, counting, err, until_nobody_reads
from quire.cli.record_output import RecordOutput
from quire.cli.stream_options import JsonLines, Name, Timeout, Uri, copies, on_streams
from quire.client import Client
from quire.codec.stream.records import LogRecord
from quire.errors import QuireError, StreamSealed
from quire.runtime import LocalNetwork
from quire.stream.namespace import Namespace
from quire.stream.positions import parse_position
from quire.stream.reader import LOOK_S, StreamReader
from quire.stream.start import Start, Time, Txid
from quire.types import DLSN

app = typer.Typer()

_BATCH_MAX: Final = 10_000


@app.command(
    epilog="Examples:  quire read orders  ·  quire read orders --from t:2026-01-01 --limit 10  ·  "
    "quire read orders --from '>3:17:0' --json"
)
def read(
    name: Name,
    start: Annotated[str, typer.Option("--from", metavar="POSITION", help="Where to begin.")] = "earliest",
    to: Annotated[
        str, typer.Option("--to", metavar="POSITION", help="Where to stop, before the record there.")
    ] = "latest",
    limit: Annotated[
        int, typer.Option("--limit", "-n", metavar="N", min=0, show_default="all", help="Print no more than N records.")
    ] = sys.maxsize,
    dlsn: Annotated[bool, typer.Option("--dlsn", help="Print the place of each record before it, and a tab.")] = False,
    null: Annotated[
        bool, typer.Option("--null", "-0", help="End records with a NUL byte, not with a newline.")
    ] = False,
    uri: Uri = None,
    json: JsonLines = False,
    timeout: Timeout = 30.0,
) -> None:
    """Print the records of a stream.

    All that are there now, and no more. A payload that is not UTF-8 is in payload_base64 with --json.

    Positions: earliest, latest, 3:17:0, '>3:17:0' (behind it), tx:1700000000000, t:2026-01-01T00:00:00Z, t:2026-01-01.
    """
    output = RecordOutput(as_json=json, with_dlsn=dlsn, end=b"\0" if null else b"\n")
    begin = checked(lambda: parse_position(start), as_json=json, in_lines=True)
    until = checked(lambda: parse_position(to), as_json=json, in_lines=True)

    async def work(client: Client) -> None:
        await _complete(client, name)
        end = await _end(client, name, until)
        async with client.open_reader(name, start=begin) as reader:
            with counting(f"{name}: records read", quiet=sys.stdout.isatty()) as counter:
                left = limit
                while left > 0 and not end.is_reached(reader):
                    try:
                        records = await reader.read_many(min(left, _BATCH_MAX), timeout_s=LOOK_S)
                    except StreamSealed:
                        break
                    wanted = list(takewhile(end.is_behind, records))
                    output.print(wanted, at_once=False)
                    counter.step(len(wanted))
                    left = left - len(wanted) if len(wanted) == len(records) else 0
        output.print((), at_once=True)

    with until_nobody_reads():
        on_streams(uri, work, json=json, timeout_s=timeout, in_lines=True)


class _End(NamedTuple):
    """Where to stop: before a place, and before a txid if there is one."""

    place: DLSN
    txid: int | None = None

    def is_behind(self, record: LogRecord) -> bool:
        return record.dlsn < self.place and (self.txid is None or record.txid < self.txid)

    def is_reached(self, reader: StreamReader) -> bool:
        return reader.has_reached(self.place)


async def _end(client: Client, name: str, until: Start) -> _End:
    async with client.open_reader(name, start="earliest" if until == "earliest" else "latest") as reader:
        now = reader.position
    if isinstance(until, DLSN):
        return _End(min(until, now))
    if isinstance(until, Txid):
        return _End(now, until.value)
    if isinstance(until, Time):
        return _End(now, until.ms)
    return _End(now)


async def _complete(client: Client, name: str) -> None:
    """See to it that the end of a stream in a folder is the end of what was acknowledged.

    Readers see what is confirmed, and the last record is confirmed by what follows it: a program that was killed may
    not have come so far. Its successor as a writer finds out. In a folder nobody else can be writing, so we may be it.
    """
    if not isinstance(client, Namespace) or not isinstance(client.context.runtime.network, LocalNetwork):
        return
    if all(segment.is_completed for segment in (await client.stream_info(name)).segments):
        return
    try:
        chosen = await copies(client, name) | {"create_if_missing": False}
        async with client.open_writer(name, **chosen):
            pass
    except StreamSealed:
        pass
    except QuireError as error:
        err().print(f"[bold]note:[/] the last record may be missing: {escape(str(error))}", soft_wrap=True)
