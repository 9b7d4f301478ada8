"""`quire ledger`: ledgers from the command line."""

import sys
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import typer
from rich.markup import escape

from quire.cli.output import counting, out, print_json, run
from quire.ledger.client import LedgerClient, open_ledgers
from quire.metadata import StoreSettings
from quire.types import LedgerMetadata, LedgerState

app = typer.Typer(help="Ledgers: create, write, read, recover and delete them.", no_args_is_help=True)
T = TypeVar("T")

Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the cluster's metadata is. Default: $QUIRE_METADATA.",
        show_default=False,
    ),
]
LedgerNumber = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="The ledger's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Password = Annotated[str, typer.Option(metavar="TEXT", help="The ledger's password.")]
_WINDOW = 1000


def _on(uri: str, work: Callable[[LedgerClient], Awaitable[T]], *, json: bool) -> T:
    async def connected() -> T:
        async with open_ledgers(uri, store_settings=StoreSettings(create_missing=False)) as ledgers:
            return await work(ledgers)

    return run(connected(), as_json=json)


@app.command(epilog="Example:  seq 1000 | quire ledger write --metadata sqlite:./metadata.db")
def write(
    metadata: Metadata,
    ensemble: Annotated[int, typer.Option(min=1, help="How many bookies the ledger is spread over.")] = 3,
    write_quorum: Annotated[int, typer.Option(min=1, help="How many of them get each entry.")] = 3,
    ack_quorum: Annotated[int, typer.Option(min=1, help="How many must have it before it counts.")] = 2,
    digest: Annotated[str, typer.Option(help="crc32c, crc32, mac or dummy.")] = "crc32c",
    password: Password = "",
    json: Json = False,
) -> None:
    """Create a ledger with one entry for each line of standard input, and seal it."""

    async def work(ledgers: LedgerClient) -> dict[str, Any]:
        async with ledgers.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password.encode(),
        ) as ledger:
            lines: list[bytes] = []
            with counting("writing entries", quiet=json) as counter:
                for line in sys.stdin.buffer:
                    lines.append(line.rstrip(b"\n"))
                    counter.step()
                    if len(lines) == _WINDOW:
                        await ledger.append_many(lines)
                        lines = []
                await ledger.append_many(lines)
            return {"ledger": ledger.id, "entries": ledger.last_add_confirmed + 1}

    done = _on(metadata, work, json=json)
    if json:
        print_json(done)
    else:
        out().print(f"Ledger [bold]{done['ledger']}[/] has {done['entries']} entries.")


@app.command(epilog="Example:  quire ledger read 7 --metadata sqlite:./metadata.db")
def read(
    ledger: LedgerNumber,
    metadata: Metadata,
    first: Annotated[int, typer.Option("--from", min=0, help="The first entry.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="The last entry; the end without it.")] = None,
    recover: Annotated[bool, typer.Option(help="Shut its writer out and seal it first.")] = False,
    password: Password = "",
    json: Json = False,
) -> None:
    """Print the entries of a ledger, a line each. Without --recover its writer goes on undisturbed."""

    async def work(ledgers: LedgerClient) -> None:
        async with ledgers.open(ledger, password=password.encode(), recover=recover) as reader:
            async for entry in reader.read(first, last):
                if json:
                    print_json({"entry": entry.entry_id, "payload": entry.payload.decode(errors="replace")})
                else:
                    sys.stdout.buffer.write(entry.payload + b"\n")
        sys.stdout.flush()

    _on(metadata, work, json=json)


@app.command("list", epilog="Example:  quire ledger list --metadata sqlite:./metadata.db")
def list_ledgers(metadata: Metadata, json: Json = False) -> None:
    """List the ids of all ledgers."""

    async def work(ledgers: LedgerClient) -> list[int]:
        return [ledger_id async for ledger_id in ledgers.scan()]

    found = _on(metadata, work, json=json)
    if json:
        print_json({"ledgers": found})
    else:
        for ledger_id in found:
            out().print(str(ledger_id))


@app.command(epilog="Example:  quire ledger show 7 --metadata sqlite:./metadata.db")
def show(ledger: LedgerNumber, metadata: Metadata, json: Json = False) -> None:
    """Show what the metadata says of a ledger: its state, its quorums, and which bookies have which entries."""

    async def work(ledgers: LedgerClient) -> LedgerMetadata:
        return (await ledgers.ledgers_metadata.read(ledgers.id_of(ledger))).metadata

    _print_ledger(ledger, _on(metadata, work, json=json), json=json)


@app.command(epilog="Example:  quire ledger recover 7 --metadata sqlite:./metadata.db")
def recover(ledger: LedgerNumber, metadata: Metadata, json: Json = False) -> None:
    """Shut the writer of a ledger out, find its last entry, and seal it there."""

    async def work(ledgers: LedgerClient) -> LedgerMetadata:
        return (await ledgers.recover(ledger)).metadata

    _print_ledger(ledger, _on(metadata, work, json=json), json=json)


@app.command(epilog="Example:  quire ledger delete 7 --metadata sqlite:./metadata.db")
def delete(ledger: LedgerNumber, metadata: Metadata, json: Json = False) -> None:
    """Delete a ledger. Its entries go when the bookies next collect garbage."""

    async def work(ledgers: LedgerClient) -> None:
        await ledgers.ledgers_metadata.read(ledgers.id_of(ledger))  # So that a mistyped id is told.
        await ledgers.delete(ledger)

    _on(metadata, work, json=json)
    if json:
        print_json({"deleted": ledger})


def _print_ledger(ledger: int, metadata: LedgerMetadata, *, json: bool) -> None:
    quorum, closed = metadata.quorum, metadata.state is LedgerState.CLOSED
    facts: dict[str, Any] = {
        "ledger": ledger,
        "state": metadata.state.name.lower(),
        "ensemble": quorum.ensemble,
        "write_quorum": quorum.write,
        "ack_quorum": quorum.ack,
        "digest": None if metadata.digest is None else metadata.digest.name.lower(),
        "entries": metadata.last_entry_id + 1 if closed else None,
        "length": metadata.length if closed else None,
        "fragments": [{"first": each.first_entry_id, "bookies": list(each.bookies)} for each in metadata.fragments],
    }
    if json:
        print_json(facts)
        return
    console = out()
    console.print(f"[bold]Ledger {ledger}[/]  {facts['state']}")
    console.print(f"  quorums  ensemble {quorum.ensemble}, write {quorum.write}, ack {quorum.ack}")
    console.print(f"  digest   {facts['digest']}")
    if closed:
        console.print(f"  entries  {facts['entries']}, {metadata.length} bytes of payload")
    for each in metadata.fragments:
        console.print(f"  from {each.first_entry_id:>8}  {escape(', '.join(each.bookies))}")
