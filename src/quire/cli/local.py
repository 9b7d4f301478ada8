"""`quire up`, `quire down` and `quire status`: a local cluster on this machine."""

import asyncio
from typing import Annotated

import typer

from quire.cli.operating import HttpHost
from quire.cli.output import FAILED, print_json, report, run
from quire.errors import NotRunning, QuireError

app = typer.Typer()

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The cluster's data folder. Default: ./quire-data.",
        show_default=False,
    ),
]


@app.command(epilog="Example:  quire up  (then, in another terminal:  echo hello | quire write greetings)")
def up(
    data: Annotated[
        str, typer.Option("--data", metavar="DIR", help="Where everything is kept. It is made if it is missing.")
    ] = "quire-data",
    bookies: Annotated[int, typer.Option(metavar="N", help="How many storage nodes, 1 to 9.")] = 3,
    port: Annotated[
        int,
        typer.Option(
            metavar="PORT",
            help="Of the first bookie; the others follow. Default: any free ports.",
            show_default=False,
        ),
    ] = 0,
    write_proxies: Annotated[int, typer.Option(metavar="N", help="How many write proxies, 0 to 9.")] = 1,
    read_proxies: Annotated[int, typer.Option(metavar="N", help="How many read proxies, 0 to 9.")] = 1,
    proxy_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT",
            help="Of the first write proxy; the other proxies follow. Default: 7400 and 7500 if they are free.",
            show_default=False,
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Serve HTTP and JSON for curl there, too.", show_default=False),
    ] = None,
    http_host: HttpHost = None,
    autorecovery: Annotated[
        bool,
        typer.Option("--autorecovery/--no-autorecovery", help="Whether ledgers that lack copies are repaired."),
    ] = True,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change a setting of every bookie: see `quire bookie settings`. Repeat."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line for whatever happens.")] = False,
) -> None:
    """Run a local cluster in the foreground until Ctrl-C: bookies and proxies, restarted when they crash."""
    from quire.app.local_cluster import LocalOptions, run_local_cluster
    from quire.app.occupancy import data_folder
    from quire.cli.local_output import JsonLines, Lines

    shown = JsonLines() if json else Lines()
    try:
        options = LocalOptions(
            data_folder(data),
            bookies,
            port,
            tuple(set or ()),
            write_proxies=write_proxies,
            read_proxies=read_proxies,
            proxy_port=proxy_port,
            gateway=gateway,
            http_hosts=tuple(http_host or ()),
            autorecovery=autorecovery,
        )
        with asyncio.Runner() as runner:
            runner.run(run_local_cluster(options, shown.tell))
    except QuireError as error:
        shown.fail(error)
        raise typer.Exit(FAILED) from error


@app.command(epilog="Example:  quire down  (or, with several clusters:  quire down --data ./quire-data)")
def down(data: Data = None, json: Json = False) -> None:
    """Stop a local cluster that runs in another terminal, or what is left of one that was killed."""
    from quire.app.local_stop import stop_cluster
    from quire.app.occupancy import chosen_folder
    from quire.cli.local_status import show_stopped

    try:
        folder = chosen_folder(data)
    except QuireError as error:
        report(error, as_json=json)
        raise typer.Exit(FAILED) from error
    stopped = run(stop_cluster(folder), as_json=json)
    if json:
        print_json({"data": stopped.data, "supervisor": stopped.supervisor, "left_overs": stopped.left_overs})
    else:
        show_stopped(stopped)


@app.command(epilog="Example:  quire status --json")
def status(data: Data = None, json: Json = False) -> None:
    """Show a local cluster: what runs where, and how it is. Exit code 1 unless all is well."""
    from dataclasses import asdict

    from quire.app.local_status import cluster_status
    from quire.app.occupancy import chosen_folder, not_running
    from quire.cli.local_status import show_not_running, show_status

    try:
        folder = chosen_folder(data)
        found = run(cluster_status(folder), as_json=json)
        absent = not_running(folder)
    except NotRunning as error:
        found, absent = None, error
    except QuireError as error:
        report(error, as_json=json)
        raise typer.Exit(FAILED) from error
    if json:
        print_json({"running": False, "message": str(absent), "hint": absent.hint} if found is None else asdict(found))
    elif found is None:
        show_not_running(absent)
    else:
        show_status(found)
    if found is None or not found.is_well:
        raise typer.Exit(FAILED)
