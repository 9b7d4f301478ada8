"""`quire ledger`: ledgers from the command line."""

import asyncio
import json as json_format
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from quire.cli.default_uri import metadata_uri
from quire.cli.ledger_output import facts, plural, print_ledger, print_table, spinning
from quire.cli.output import (
    FAILED,
    checked,
    counting,
    out,
    print_json,
    run,
    say_where,
    until_nobody_reads,
    write_bytes,
)
from quire.cli.record_output import payload_facts
from quire.cli.stdin import ctrl_c, input_lines
from quire.errors import InvalidArgument, NoSuchLedger
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.reading.reader import LedgerEntry
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoredLedger, StoreSettings
from quire.rpc import ChannelSettings
from quire.types import LedgerId

app = typer.Typer(help="Ledgers: create, write, read, recover and delete them.", no_args_is_help=True)
T = TypeVar("T")

_READ_AT_ONCE_MAX = 16  # Ledgers' metadata, for a long list.
_LAC_INTERVAL_S = 0.5  # So that whoever follows sees the last line, too, while the next one is not there.

Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the cluster's metadata is. Default: $QUIRE_METADATA, else that of the cluster in ./quire-data.",
        show_default=False,
    ),
]
LedgerNumber = Annotated[int, typer.Argument(metavar="LEDGER", min=0, help="The ledger's id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up on any one step after this long.")
]
Password = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help="A file with the ledger's password. Default: $QUIRE_LEDGER_PASSWORD, else none.",
        show_default=False,
    ),
]
Ensemble = Annotated[int, typer.Option(min=1, help="How many bookies the ledger is spread over.")]
WriteQuorum = Annotated[int, typer.Option(min=1, help="How many of them get each entry.")]
AckQuorum = Annotated[int, typer.Option(min=1, help="How many must have it before it counts.")]
Digest = Annotated[str, typer.Option(help="crc32c, crc32, mac or dummy.")]
Custom = Annotated[
    list[str] | None, typer.Option("--custom", metavar="KEY=VALUE", help="Metadata of your own for the ledger. Repeat.")
]
ChosenId = Annotated[
    int | None, typer.Option("--ledger-id", min=0, metavar="ID", help="The id to use, instead of the next free one.")
]


def _password(file: Path | None) -> bytes:
    """Never from the command line, which every user of the machine can see. Raises `InvalidArgument`."""
    if file is None:
        return os.environ.get("QUIRE_LEDGER_PASSWORD", "").encode()
    try:
        return file.read_bytes().removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise InvalidArgument(f"the password in {file} cannot be read: {error}", path=str(file)) from error


def _on(uri: str | None, work: Callable[[LedgerClient], Awaitable[T]], *, json: bool, timeout_s: float) -> T:
    """Run a command's work. A person would rather wait for a busy bookie than be told that it is slow."""

    async def connected() -> T:
        settings = LedgerSettings(
            call_timeout_s=timeout_s, read_timeout_s=timeout_s / 2, explicit_lac_interval_s=_LAC_INTERVAL_S
        )
        pool = PoolSettings(channel=ChannelSettings(connect_timeout_s=timeout_s / 2, request_timeout_s=timeout_s))
        store = StoreSettings(create_missing=False, operation_timeout_s=min(10.0, timeout_s))
        async with open_ledgers(
            metadata_uri(uri), settings=settings, pool_settings=pool, store_settings=store
        ) as ledgers:
            return await work(ledgers)

    return run(connected(), as_json=json)


def _change(
    uri: str | None, work: Callable[[LedgerClient], Awaitable[T]], *, json: bool, timeout_s: float
) -> tuple[str, T]:
    """Run the work of a command that changes a cluster. Says which one that was, and returns it."""
    where = checked(lambda: metadata_uri(uri), as_json=json)
    done = _on(where, work, json=json, timeout_s=timeout_s)
    say_where(where, json=json, what="cluster")
    return where, done


# --- Writing


@app.command(epilog="Example:  quire ledger create --ledger-id 7 --custom owner=me --metadata sqlite:./metadata.db")
def create(
    metadata: Metadata = None,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    digest: Digest = "crc32c",
    password_file: Password = None,
    custom: Custom = None,
    ledger_id: ChosenId = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Create an empty ledger and seal it. To fill one, use write: only who creates a ledger can write to it."""

    async def work(ledgers: LedgerClient) -> StoredLedger:
        async with ledgers.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=_password(password_file),
            custom=_parsed_custom(custom),
            ledger_id=ledger_id,
        ) as ledger:
            pass
        return ledger.metadata

    where, stored = _change(metadata, work, json=json, timeout_s=timeout)
    print_ledger(stored, json=json, where=where)


@app.command(epilog="Example:  seq 1000 | quire ledger write --metadata sqlite:./metadata.db")
def write(
    metadata: Metadata = None,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = 3,
    ack_quorum: AckQuorum = 2,
    digest: Digest = "crc32c",
    password_file: Password = None,
    custom: Custom = None,
    ledger_id: ChosenId = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Create a ledger with one entry for each line of standard input, and seal it. Ctrl-C ends the input."""

    async def work(ledgers: LedgerClient) -> dict[str, Any]:
        async with ledgers.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=_password(password_file),
            custom=_parsed_custom(custom),
            ledger_id=ledger_id,
        ) as ledger:
            with counting(f"ledger {ledger.id}: entries written", quiet=json) as counter:
                with ctrl_c() as interrupted:
                    async with aclosing(input_lines(interrupted)) as chunks:
                        async for lines in chunks:
                            await ledger.enqueue(lines)
                            counter.step(len(lines))
                await ledger.flush()
            return {"ledger": ledger.id, "entries": ledger.last_add_confirmed + 1, "length": ledger.length}

    where, done = _change(metadata, work, json=json, timeout_s=timeout)
    if json:
        print_json({"metadata": where, **done})
    else:
        out().print(f"Ledger [bold]{done['ledger']}[/] has {plural(done['entries'], 'entry', 'entries')}.")


def _parsed_custom(words: list[str] | None) -> dict[str, bytes]:
    found = dict[str, bytes]()
    for word in words or ():
        key, equals, value = word.partition("=")
        if not key or not equals:
            raise InvalidArgument(f"{word!r} is not KEY=VALUE", hint="Write --custom owner=me, once for each key.")
        found[key] = value.encode()
    return found


# --- Reading


@app.command(epilog="Examples:  quire ledger read 7 --from 100  ·  quire ledger read 7 --follow")
def read(
    ledger: LedgerNumber,
    metadata: Metadata = None,
    first: Annotated[int, typer.Option("--from", min=0, help="The first entry.")] = 0,
    last: Annotated[int | None, typer.Option("--to", min=0, help="The last entry; the end without it.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "--tail", "-f", help="Wait for more, until the ledger is closed.")
    ] = False,
    recover: Annotated[bool, typer.Option("--recover", help="Shut its writer out and seal it first.")] = False,
    password_file: Password = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Print the entries of a ledger, a line each. Without --recover its writer goes on undisturbed.

    With --json each entry is a line of its own; a payload that is not UTF-8 is in payload_base64.
    """

    async def work(ledgers: LedgerClient) -> None:
        if follow and last is not None:
            raise InvalidArgument("--follow has no last entry", hint="Leave --to or --follow away.")
        async with ledgers.open(ledger, password=_password(password_file), recover=recover) as reader:
            found = reader.follow(first) if follow else reader.read(first, last)
            async with aclosing(found) as entries:
                await _print_entries(entries, json=json, at_once=follow)

    with until_nobody_reads():
        _on(metadata, work, json=json, timeout_s=timeout)


async def _print_entries(entries: AsyncIterator[LedgerEntry], *, json: bool, at_once: bool) -> None:
    async for entry in entries:
        write_bytes(_json_line(entry) if json else entry.payload + b"\n", at_once=at_once)
    write_bytes(b"", at_once=True)


def _json_line(entry: LedgerEntry) -> bytes:
    told = {"entry": entry.entry_id, **payload_facts(entry.payload)}
    return json_format.dumps(told, ensure_ascii=False).encode() + b"\n"


# --- Looking


@app.command("list", epilog="Example:  quire ledger list --long --metadata sqlite:./metadata.db")
def list_ledgers(
    metadata: Metadata = None,
    long: Annotated[bool, typer.Option("--long", "-l", help="Also their state, size and quorums.")] = False,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """List the ids of all ledgers."""

    async def work(ledgers: LedgerClient) -> tuple[list[LedgerId], list[StoredLedger]]:
        with counting("listing ledgers", quiet=json) as counter:
            found: list[LedgerId] = []
            async for ledger_id in ledgers.scan():
                found.append(ledger_id)
                counter.step()
        return found, await _read_all(ledgers, found, quiet=json) if long else []

    found, stored = _on(metadata, work, json=json, timeout_s=timeout)
    if json:
        print_json({"ledgers": [facts(each) for each in stored] if long else found})
    elif long:
        print_table(stored)
    else:
        sys.stdout.write("".join(f"{ledger_id}\n" for ledger_id in found))


async def _read_all(ledgers: LedgerClient, wanted: list[LedgerId], *, quiet: bool) -> list[StoredLedger]:
    """The metadata of all that still exist."""

    async def one(ledger_id: LedgerId) -> StoredLedger | None:
        try:
            return await ledgers.ledgers_metadata.read(ledger_id)
        except NoSuchLedger:
            return None

    found: list[StoredLedger] = []
    with counting("reading metadata", quiet=quiet) as counter:
        for place in range(0, len(wanted), _READ_AT_ONCE_MAX):
            some = await asyncio.gather(*map(one, wanted[place : place + _READ_AT_ONCE_MAX]))
            found += [each for each in some if each is not None]
            counter.step(len(some))
    return found


@app.command(epilog="Example:  quire ledger show 7 --metadata sqlite:./metadata.db")
def show(ledger: LedgerNumber, metadata: Metadata = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Show what the metadata says of a ledger: its state, its quorums, and which bookies have which entries."""

    async def work(ledgers: LedgerClient) -> StoredLedger:
        return await ledgers.ledgers_metadata.read(ledgers.id_of(ledger))

    print_ledger(_on(metadata, work, json=json, timeout_s=timeout), json=json)


# --- Ending


@app.command(epilog="Example:  quire ledger recover 7 --metadata sqlite:./metadata.db")
def recover(ledger: LedgerNumber, metadata: Metadata = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Shut the writer of a ledger out, find its last entry, and seal it there."""

    async def work(ledgers: LedgerClient) -> StoredLedger:
        with spinning(f"recovering ledger {ledger}", quiet=json):
            return await ledgers.recover(ledger)

    where, stored = _change(metadata, work, json=json, timeout_s=timeout)
    print_ledger(stored, json=json, where=where)


@app.command(epilog="Example:  quire ledger repair 7 --metadata sqlite:./metadata.db")
def repair(ledger: LedgerNumber, metadata: Metadata = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Give a closed ledger back the copies that its bookies lack. Nothing else is changed."""
    from quire.app.repairing import repair_one  # And with it autorecovery, which only this needs.
    from quire.cli.operating import on_cluster

    where = checked(lambda: metadata_uri(metadata), as_json=json)
    done = on_cluster(lambda cluster: repair_one(cluster, ledger), metadata=where, json=json, timeout_s=timeout)
    say_where(where, json=json, what="cluster")
    if json:
        print_json({"metadata": where, "ledger": done.ledger_id, "whole": done.is_whole, "told": done.told})
    else:
        out().print(f"Ledger [bold]{ledger}[/]: {done.told}.", soft_wrap=True)
    if not done.is_whole:
        raise typer.Exit(FAILED)


@app.command(epilog="Example:  quire ledger delete 7 --metadata sqlite:./metadata.db")
def delete(ledger: LedgerNumber, metadata: Metadata = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Delete a ledger. Its entries go when the bookies next collect garbage."""

    async def work(ledgers: LedgerClient) -> None:
        await ledgers.ledgers_metadata.read(ledgers.id_of(ledger))  # So that a mistyped id is told.
        await ledgers.delete(ledger)

    where, _ = _change(metadata, work, json=json, timeout_s=timeout)
    if json:
        print_json({"metadata": where, "deleted": ledger})
    else:
        out().print(f"Ledger [bold]{ledger}[/] is deleted.")
