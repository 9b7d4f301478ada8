"""What all commands about streams have in common: their options, and how they connect."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Annotated, Any, Final, TypeVar

import typer

from quire.cli.completion import complete_stream
from quire.cli.default_uri import FOLDER, is_folder, is_proxies, stream_uri
from quire.cli.output import checked, run, say_where
from quire.client import Client, connect
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.settings import LedgerSettings
from quire.metadata import StoreSettings, attach_cluster, parse_uri
from quire.rpc import ChannelSettings
from quire.stream.binding import ledgers_uri
from quire.stream.namespace import Namespace
from quire.stream.settings import StreamOverrides, StreamSettings

T = TypeVar("T")

_STORE_TIMEOUT_S_MAX: Final = 10.0

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The stream.", autocompletion=complete_stream, show_default=False)
]
Names = Annotated[list[str], typer.Argument(metavar="NAME", help="The streams.", autocompletion=complete_stream)]
Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        envvar="QUIRE_URI",
        metavar="URI",
        help=f"Where the streams are. Default: $QUIRE_URI, else {FOLDER}, through its local cluster if one runs.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object for each record.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up on any one step after this long.")
]


def on_streams(
    uri: str | None,
    work: Callable[[Client], Awaitable[T]],
    *,
    json: bool,
    timeout_s: float,
    creating: bool = False,
    in_lines: bool = False,
) -> T:
    """Run a command's work. With `creating` the log, and the namespace, are made if they are not there."""

    async def connected() -> T:
        where = stream_uri(uri, creating=creating)
        async with connect(
            where, create=creating, **_patience(where, timeout_s, may_create=creating and is_folder(where))
        ) as client:
            return await work(client)

    return run(connected(), as_json=json, in_lines=in_lines)


def change(
    uri: str | None, work: Callable[[Client], Awaitable[T]], *, json: bool, timeout_s: float, creating: bool = False
) -> tuple[str, T]:
    """Run the work of a command that changes a log. Says which log that was, and returns it."""
    where = checked(lambda: stream_uri(uri, creating=creating), as_json=json)
    done = on_streams(where, work, creating=creating, json=json, timeout_s=timeout_s)
    say_where(where, json=json)
    return where, done


def _patience(uri: str, timeout_s: float, *, may_create: bool) -> dict[str, Any]:
    """A person would rather wait for a busy bookie than be told that it is slow."""
    settings = StreamSettings(call_timeout_s=timeout_s, lock_timeout_s=timeout_s)
    if is_proxies(uri):
        from quire.cli.proxy_environment import client_settings

        ours = client_settings(uri)  # Bookies are the proxies' business.
        ours = replace(ours, connect_timeout_s=min(ours.connect_timeout_s, timeout_s))
        return {"settings": settings, "proxy_settings": ours}
    return {
        "settings": settings,
        "ledger_settings": LedgerSettings(call_timeout_s=timeout_s, read_timeout_s=timeout_s / 2),
        "pool_settings": PoolSettings(
            channel=ChannelSettings(connect_timeout_s=timeout_s / 2, request_timeout_s=timeout_s)
        ),
        "store_settings": StoreSettings(
            create_missing=may_create, operation_timeout_s=min(_STORE_TIMEOUT_S_MAX, timeout_s)
        ),
    }


async def copies(client: Client, stream: str) -> StreamOverrides:
    """The quorums of a writer, as its settings: fewer copies than usual on a machine that has fewer bookies.

    Bookies that are down count, too: so nobody gets fewer copies because one is missing just now. Proxies decide for
    themselves.
    """
    if not isinstance(client, Namespace):
        return {}
    settings, context = client.settings_for(stream), client.context
    if client.uri.is_local:
        uri = parse_uri(ledgers_uri(client.uri, context.binding))
        cluster = await attach_cluster(context.store, uri, context.runtime, create_layout=False)
        settings = settings.with_copies_at_most(len(await cluster.bookies.known()) or settings.ensemble)
    return StreamOverrides(
        ensemble=settings.ensemble, write_quorum=settings.write_quorum, ack_quorum=settings.ack_quorum
    )
