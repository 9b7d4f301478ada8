"""`quire bookie`: run a storage node, and ask one how it is."""

from pathlib import Path
from typing import Annotated

import typer

from quire.cli.bookie_cookie import app as cookie_app
from quire.cli.default_uri import metadata_uri
from quire.cli.operating import HttpHost, Json, Timeout, Yes, agreed, bytes_of, on_cluster
from quire.cli.operating import Metadata as MetadataOfExisting
from quire.cli.output import FAILED, checked, print_json, print_settings, run
from quire.types import bookie_id

app = typer.Typer(help="Run a storage node, and ask one how it is.", no_args_is_help=True)
app.add_typer(cookie_app, name="cookie")

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
def run_command(
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
    moves_with: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder above --data that may be moved as a whole while nothing runs."),
    ] = None,
    admin: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics, /healthz and the admin API, or none.")
    ] = "127.0.0.1:0",
    http_host: HttpHost = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate chain: lets clients use TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="PEM file with the certificate's key.")] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as garbage.interval_s=60. Repeat."),
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up on the metadata after this long.")] = 10.0,
    session: Annotated[
        float, typer.Option(metavar="SECONDS", help="How soon others take the bookie for dead when it is silent.")
    ] = 10.0,
) -> None:
    """Run a bookie in the foreground until Ctrl-C or SIGTERM."""
    import uvloop  # Here, because only servers need these, and the other commands should start fast.

    from quire.app.bookie import BookieOptions, run_bookie
    from quire.telemetry.events import configure

    configure()
    options = BookieOptions(
        metadata,
        data,
        tuple(journal or ()),
        listen=listen,
        advertise=advertise,
        id=id,
        moves_with=moves_with,
        admin=admin,
        http_hosts=tuple(http_host or ()),
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        metadata_timeout_s=timeout,
        session_timeout_s=session,
        overrides=tuple(set or ()),
    )
    run(run_bookie(options), as_json=False, loop_factory=uvloop.new_event_loop)


@app.command(epilog="Example:  quire bookie settings  (then: quire bookie run … --set garbage.interval_s=60)")
def settings(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False) -> None:
    """List what `quire bookie run --set NAME=VALUE` can change, with the defaults."""
    from quire.app.bookie import default_settings
    from quire.app.overrides import setting_names

    print_settings(dict(setting_names(default_settings())), as_json=json)


@app.command(epilog="Example:  quire bookie status --metadata sqlite:./metadata.db  (all bookies)")
def status(
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            envvar="QUIRE_METADATA",
            metavar="URI",
            help="Where the cluster's metadata is. Default: $QUIRE_METADATA, else that of the cluster in ./quire-data.",
            show_default=False,
        ),
    ] = None,
    bookie: Annotated[str | None, typer.Argument(metavar="[ID]", help="One bookie; all without it.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Give up on anybody after this long.")] = 10.0,
) -> None:
    """Show how bookies are: what they hold, and every reason for not writing or not reclaiming."""
    from quire.cli.bookie_status import ask_bookies, show_bookies

    uri = checked(lambda: metadata_uri(metadata), as_json=json)
    found = run(ask_bookies(uri, bookie, timeout_s=timeout), as_json=json)
    if json:
        print_json({"bookies": found})
    else:
        show_bookies(found)
    if any(not each.get("ok") for each in found):
        raise typer.Exit(FAILED)


# --- Letting one go

BookieName = Annotated[str, typer.Argument(metavar="ID", help="The bookie.")]


@app.command(epilog="Example:  quire bookie drain bookie-2 --metadata sqlite:./metadata.db")
def drain(bookie: BookieName, metadata: MetadataOfExisting = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Have a live bookie take no more entries. It serves what it has; restarts do not change that."""
    _set_drained(bookie, True, metadata, json=json, timeout_s=timeout)


@app.command(epilog="Example:  quire bookie undrain bookie-2 --metadata sqlite:./metadata.db")
def undrain(
    bookie: BookieName, metadata: MetadataOfExisting = None, json: Json = False, timeout: Timeout = 10.0
) -> None:
    """Have a drained bookie take entries again."""
    _set_drained(bookie, False, metadata, json=json, timeout_s=timeout)


def _set_drained(bookie: str, drained: bool, metadata: str | None, *, json: bool, timeout_s: float) -> None:
    from quire.app.decommission import set_drained
    from quire.cli.bookie_output import show_drained

    done = on_cluster(
        lambda cluster: set_drained(cluster, bookie_id(bookie), drained),
        metadata=metadata,
        json=json,
        timeout_s=timeout_s,
    )
    show_drained(done, json=json)
    if done.is_readonly is not drained:
        raise typer.Exit(FAILED)


@app.command(
    epilog="Examples:  quire bookie decommission bookie-2  ·  quire bookie decommission bookie-2 --plan  ·  "
    "quire bookie decommission bookie-2 --force --yes"
)
def decommission(
    bookie: BookieName,
    metadata: MetadataOfExisting = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only show what would be copied, and what is in the way.")
    ] = False,
    rate: Annotated[
        str, typer.Option(metavar="BYTES", help="Copy no more than this in a second, such as 16MiB. 0 is no limit.")
    ] = "16MiB",
    force: Annotated[
        bool, typer.Option("--force", help="Delete the cookie though ledgers still name the bookie. Loses copies.")
    ] = False,
    yes: Yes = False,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Copy all that a stopped bookie held from the others, and forget it. Run it again to go on."""
    from quire.app.decommission import decommission, held_by
    from quire.cli.bookie_output import progress, show_decommissioned, show_held

    name = checked(lambda: bookie_id(bookie), as_json=json)
    limit = checked(lambda: bytes_of(rate), as_json=json)
    if plan:
        held = on_cluster(lambda cluster: held_by(cluster, name), metadata=metadata, json=json, timeout_s=timeout)
        show_held(name, held, bytes_per_s=limit, json=json)
        return
    warning = f"forget {bookie} even if it holds the only copies of something?"
    if force and not checked(lambda: agreed(warning, yes=yes, json=json), as_json=json):
        raise typer.Exit(FAILED)
    with progress(quiet=json) as on_progress:
        done = on_cluster(
            lambda cluster: decommission(cluster, name, force=force, bytes_per_s=limit, on_progress=on_progress),
            metadata=metadata,
            json=json,
            timeout_s=timeout,
        )
    show_decommissioned(done, json=json)
    if done.left:
        raise typer.Exit(FAILED)
