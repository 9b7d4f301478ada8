"""`quire bookie`: run a storage node, and ask one how it is."""

import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Annotated, Final

import typer

from quire.bookie.bookie import Bookie, BookieSettings
from quire.bookie.folder_token import folder_token
from quire.bookie.identity import BookieFolders
from quire.cli.bookie_status import ask_bookies, show_bookies
from quire.cli.output import FAILED, print_json, run
from quire.errors import InvalidArgument
from quire.metadata import StoreSettings, open_cluster
from quire.runtime import real_runtime
from quire.telemetry.events import configure
from quire.types import bookie_id

app = typer.Typer(help="Run a storage node, and ask one how it is.", no_args_is_help=True)

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - to recognise it, not to bind it

Metadata = Annotated[
    str,
    typer.Option(
        "--metadata",
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the cluster's metadata is: zk://…, etcd://… or sqlite:FILE. Default: $QUIRE_METADATA.",
        show_default=False,
    ),
]


@app.command(
    "run",
    epilog="Example:  quire bookie run --metadata sqlite:./metadata.db --data ./bookie-1 --listen 127.0.0.1:3181",
)
def run_bookie(
    metadata: Metadata,
    data: Annotated[Path, typer.Option("--data", metavar="DIR", help="Where the bookie keeps its entries.")],
    journal: Annotated[
        list[Path] | None,
        typer.Option("--journal", metavar="DIR", help="Where it keeps its journals, best on other disks. Repeat."),
    ] = None,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes any free one.")] = "127.0.0.1:3181",
    advertise: Annotated[
        str | None, typer.Option(metavar="HOST", help="The name that clients connect to, if it is another.")
    ] = None,
    id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The bookie's name for life. Default: HOST:PORT.")
    ] = None,
    admin: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics, /healthz and the admin API here.")
    ] = "127.0.0.1:0",
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate chain: lets clients use TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate's key.")] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up on the metadata after this long.")] = 10.0,
) -> None:
    """Run a bookie in the foreground until Ctrl-C or SIGTERM."""
    configure()
    folders = BookieFolders(os.path.abspath(data), tuple(os.path.abspath(each) for each in journal or ()))
    import uvloop  # Only servers need it, and it takes time to import.

    work = _run(metadata, folders, listen, advertise, id, admin, tls_certificate, tls_key, timeout)
    run(work, as_json=False, loop_factory=uvloop.new_event_loop)


async def _run(
    uri: str,
    folders: BookieFolders,
    listen: str,
    advertise: str | None,
    id: str | None,
    admin: str | None,
    tls_certificate: Path | None,
    tls_key: Path | None,
    timeout_s: float,
) -> None:
    host, port = _address(listen)
    if host in _EVERYWHERE and advertise is None:
        raise InvalidArgument(
            f"{listen!r} listens everywhere, which is no address to connect to",
            hint="Say with --advertise under which name clients reach this machine.",
        )
    settings = BookieSettings(
        folders,
        host=host,
        port=port,
        advertised_host=advertise,
        bookie_id=None if id is None else bookie_id(id),
        folder_token=folder_token,
        admin_address=None if admin in (None, "", "none") else _address(admin),
    )
    runtime = real_runtime()
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        async with (
            open_cluster(uri, settings=StoreSettings(operation_timeout_s=timeout_s), runtime=runtime) as cluster,
            Bookie(runtime, cluster, settings, tls=_tls(tls_certificate, tls_key)) as bookie,
        ):
            await _first(stopped.wait(), bookie.wait_failed())
    finally:
        await runtime.disk.aclose()


async def _first(*waits: object) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]  # type: ignore[call-overload]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise InvalidArgument(f"{text!r} is not HOST:PORT", hint="Write, for example, 127.0.0.1:3181.")
    return host.strip("[]"), int(port)


def _tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    if certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the TLS certificate cannot be used: {error}") from error
    return context


# --- Asking


@app.command(epilog="Example:  quire bookie status --metadata sqlite:./metadata.db  (all bookies)")
def status(
    metadata: Metadata,
    bookie: Annotated[str | None, typer.Argument(metavar="[ID]", help="One bookie; all without it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up on anybody after this long.")] = 10.0,
) -> None:
    """Show how bookies are: what they hold, and every reason for not writing or not reclaiming."""
    found = run(ask_bookies(metadata, bookie, timeout_s=timeout), as_json=json)
    if json:
        print_json({"bookies": found})
    else:
        show_bookies(found)
    if any(not each.get("ok") for each in found):
        raise typer.Exit(FAILED)
