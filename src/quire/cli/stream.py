"""`quire stream`: streams from the command line."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final

import typer
from rich.markup import escape

from quire.cli.default_uri import stream_uri
from quire.cli.ledger_output import plural, spinning
from quire.cli.output import checked, counting, out, print_json
from quire.cli.stream_options import Json, Name, Names, Timeout, Uri, change, copies, on_streams
from quire.cli.stream_output import facts, print_stream, print_streams, uncounted
from quire.client import Client
from quire.errors import InvalidArgument, NoSuchStream, QuireError, StreamSealed
from quire.stream.info import StreamInfo
from quire.stream.positions import parse_position
from quire.stream.start import Txid
from quire.types import DLSN

app = typer.Typer(help="Streams: create, look at, truncate, seal and delete them.", no_args_is_help=True)

_AT_ONCE_MAX: Final = 16  # Streams that are looked at together.


# --- Coming and going


@app.command(epilog="Example:  quire stream create orders payments")
def create(names: Names, uri: Uri = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Create streams. Those that are there stay as they are."""
    were_there: list[str] = []

    async def work(client: Client) -> None:
        async def act(name: str) -> None:
            if await client.stream_exists(name):
                were_there.append(name)
            else:
                await client.create_stream(name)

        await _one_by_one(names, act, "created")

    where, _ = change(uri, work, creating=True, json=json, timeout_s=timeout)
    if json:
        created = [name for name in names if name not in were_there]
        print_json({"uri": where, "created": created, "were_there": were_there})
    for name in () if json else names:
        _say(f"Stream [bold]{escape(name)}[/] {'was there already' if name in were_there else 'is created'}.")


@app.command(epilog="Example:  quire stream rename orders orders-2025")
def rename(
    name: Name,
    new_name: Annotated[str, typer.Argument(metavar="NEW", help="What it is to be called.")],
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Give a stream another name. Nobody may be writing it."""
    where, _ = change(uri, lambda client: client.rename_stream(name, new_name), json=json, timeout_s=timeout)
    if json:
        print_json({"uri": where, "renamed": name, "to": new_name})
    else:
        _say(f"Stream [bold]{escape(name)}[/] is [bold]{escape(new_name)}[/] now.")


@app.command(epilog="Example:  quire stream delete orders --yes")
def delete(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask, on a terminal.")] = False,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Delete streams with all their records, for ever."""
    if not yes and sys.stdin is not None and sys.stdin.isatty():
        what = f"stream {names[0]}" if len(names) == 1 else f"{len(names)} streams ({', '.join(names)})"
        uri = checked(lambda: stream_uri(uri, creating=False), as_json=json)
        typer.confirm(f"Delete {what} with all records at {uri}?", abort=True, err=True)

    async def work(client: Client) -> None:
        with spinning("deleting", quiet=json):
            await _one_by_one(names, client.delete_stream, "deleted")

    where, _ = change(uri, work, json=json, timeout_s=timeout)
    _done(names, "deleted", where, json=json)


# --- Looking


@app.command("list", epilog="Example:  quire stream list orders/ --long")
def list_streams(
    prefix: Annotated[str, typer.Argument(metavar="[PREFIX]", help="Only names that begin like this.")] = "",
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Also their size, their ends, and who writes them.")
    ] = False,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """List the streams there are."""

    async def work(client: Client) -> tuple[list[str], list[StreamInfo]]:
        found: list[str] = []
        with counting("listing streams", quiet=json) as counter:
            async for name in client.scan_streams(prefix):
                found.append(name)
                counter.step()
        return found, await _infos(client, found, quiet=json) if long else []

    found, infos = on_streams(uri, work, json=json, timeout_s=timeout)
    if json:
        print_json({"streams": [facts(info) for info in infos] if long else found})
    elif long:
        print_streams([facts(info) for info in infos])
    else:
        sys.stdout.write("".join(f"{name}\n" for name in found))


async def _infos(client: Client, names: Sequence[str], *, quiet: bool) -> list[StreamInfo]:
    """Of all that still exist. Once bookies did not answer, those of other streams are not waited for."""
    is_counting = True

    async def one(name: str) -> StreamInfo | None:
        nonlocal is_counting
        try:
            info = await client.stream_info(name, sizes=is_counting)
        except NoSuchStream:
            return None
        is_counting = is_counting and not uncounted(info)
        return info

    found: list[StreamInfo] = []
    with counting("looking at streams", quiet=quiet) as counter:
        for place in range(0, len(names), _AT_ONCE_MAX):
            some = await asyncio.gather(*map(one, names[place : place + _AT_ONCE_MAX]))
            found += [each for each in some if each is not None]
            counter.step(len(some))
    return found


@app.command(epilog="Example:  quire stream show orders")
def show(name: Name, uri: Uri = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """Show a stream: its segments, where it begins and ends, who writes and reads it."""

    info = on_streams(uri, lambda client: client.stream_info(name, sizes=True), json=json, timeout_s=timeout)
    print_stream(info, json=json)


# --- The ends of a stream


@app.command(
    epilog="Examples:  quire stream truncate orders --before 3:17:0  ·  "
    "quire stream truncate orders --before tx:1700000000000"
)
def truncate(
    name: Name,
    before: Annotated[str, typer.Option(metavar="POSITION", help="What is before it goes: a place, or tx:N.")],
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Hide the oldest records of a stream from readers. To free their space, purge it then."""
    place = checked(lambda: _place(before), as_json=json)
    where, first = change(uri, lambda client: client.truncate_stream(name, before=place), json=json, timeout_s=timeout)
    if json:
        print_json({"uri": where, "stream": name, "first_dlsn": str(first)})
    else:
        _say(f"Stream [bold]{escape(name)}[/] begins at {first} now.")


def _place(text: str) -> DLSN | Txid:
    position = parse_position(text)
    if not isinstance(position, DLSN | Txid):
        raise InvalidArgument(
            f"a stream cannot be truncated before {text!r}", hint="Give a place such as 3:17:0, or a txid as tx:N."
        )
    return position


@app.command(epilog="Examples:  quire stream purge orders  ·  quire stream purge orders --before tx:1700000000000")
def purge(
    name: Name,
    before: Annotated[
        str | None, typer.Option(metavar="tx:N", help="Delete segments with lower txids only, not those truncated.")
    ] = None,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Delete the oldest segments of a stream: those that are truncated as a whole. The last completed one stays."""
    txid = None if before is None else checked(lambda: _txid(before), as_json=json)

    async def work(client: Client) -> int:
        with spinning(f"purging {name}", quiet=json):
            return await client.purge_stream(name, before=txid)

    where, count = change(uri, work, json=json, timeout_s=timeout)
    if json:
        print_json({"uri": where, "stream": name, "purged_segments": count})
    else:
        _say(f"{plural(count, 'segment', 'segments')} of stream [bold]{escape(name)}[/] deleted.")


def _txid(text: str) -> Txid:
    position = parse_position(text)
    if not isinstance(position, Txid):
        raise InvalidArgument(f"a stream cannot be purged before {text!r}", hint="Give a txid as tx:N, or nothing.")
    return position


@app.command(epilog="Example:  quire stream seal orders-2025")
def seal(names: Names, uri: Uri = None, json: Json = False, timeout: Timeout = 30.0) -> None:
    """End streams for ever: readers stop behind the last record, and nothing can be written any more."""

    async def work(client: Client) -> None:
        async def act(name: str) -> None:
            try:
                chosen = await copies(client, name) | {"create_if_missing": False}
                async with client.open_writer(name, **chosen) as writer:
                    await writer.seal()
            except StreamSealed:
                pass  # That is what was asked for.

        with spinning("sealing", quiet=json):
            await _one_by_one(names, act, "sealed")

    where, _ = change(uri, work, json=json, timeout_s=timeout)
    _done(names, "sealed", where, json=json)


# --- For all of them


async def _one_by_one(names: Sequence[str], act: Callable[[str], Awaitable[None]], done: str) -> None:
    """Do it to each of them. An error says to which it was done before."""
    for place, name in enumerate(names):
        try:
            await act(name)
        except QuireError as error:
            if place:
                error.add_note(f"{', '.join(names[:place])}: {done} before that.")
            raise


def _done(names: Sequence[str], done: str, where: str, *, json: bool) -> None:
    if json:
        print_json({"uri": where, done: list(names)})
    for name in () if json else names:
        _say(f"Stream [bold]{escape(name)}[/] is {done}.")


def _say(text: str) -> None:
    out().print(text, soft_wrap=True)
