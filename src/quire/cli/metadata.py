"""`quire metadata`: set up a cluster's metadata and look at it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from quire.cli.default_uri import metadata_uri
from quire.cli.output import FAILED, checked, counting, out, print_json, run
from quire.errors import DamagedMetadata, NoSuchNode
from quire.metadata import Cluster, StoreSettings, attach_cluster, init_cluster, open_store, parse_uri
from quire.metadata.check import Finding, check_cluster
from quire.runtime import real_runtime
from quire.types import BookieId

app = typer.Typer(help="Set up a cluster's metadata and look at it.", no_args_is_help=True)

Uri = Annotated[
    str,
    typer.Argument(
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the metadata is: zk://…, etcd://…, sqlite:FILE or memory:. Default: $QUIRE_METADATA.",
        show_default=False,
    ),
]
UriOfExisting = Annotated[
    str | None,
    typer.Argument(
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the metadata is: zk://…, etcd://…, sqlite:FILE. Default: $QUIRE_METADATA, else the running local "
        "cluster.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Give up on the store after this long.")]


@app.command(
    epilog="Examples:  quire metadata init sqlite:./metadata.db  ·  quire metadata init 'zk+hierarchical://zk1:2181/ledgers'"
)
def init(uri: Uri, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Set up a new cluster, or complete what Pulsar's set-up began. What is there already is never changed."""
    summary = run(_init(uri, timeout), as_json=json)
    if json:
        print_json(summary)
    else:
        console = out()
        console.print(f"Cluster set up at [bold]{escape(summary['uri'])}[/]", soft_wrap=True)
        console.print(f"  layout       {summary['layout']}")
        console.print(f"  instance id  {summary['instance_id']}")


async def _init(uri: str, timeout_s: float) -> dict[str, Any]:
    parsed, runtime = parse_uri(uri), real_runtime()
    async with open_store(parsed, settings=StoreSettings(operation_timeout_s=timeout_s), runtime=runtime) as store:
        cluster = await init_cluster(store, parsed, runtime)
        return {"uri": uri, "root": parsed.root, "layout": cluster.layout, "instance_id": await cluster.instance_id()}


@app.command(
    epilog="Examples:  quire metadata show  ·  quire metadata show zk://zk1:2181/ledgers --json",
)
def show(uri: UriOfExisting = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Show a cluster: its layout, its bookies, how many ledgers it has. Changes nothing."""
    uri = checked(lambda: metadata_uri(uri, named_by="a URI"), as_json=json)
    summary = run(_show(uri, timeout, quiet=json), as_json=json)
    if json:
        print_json(summary)
    else:
        _print_summary(summary)


async def _show(uri: str, timeout_s: float, *, quiet: bool) -> dict[str, Any]:
    async with _looking(uri, timeout_s) as cluster:
        listing = await cluster.bookies.listing()
        known = await cluster.bookies.known()
        modes = dict.fromkeys(listing.readonly, "readonly") | dict.fromkeys(listing.writable, "writable")
        with counting("counting ledgers", quiet=quiet) as counter:
            async for _ in cluster.ledgers.scan():
                counter.step()
        return {
            "uri": uri,
            "root": cluster.uri.root,
            "layout": cluster.layout,
            "instance_id": await cluster.instance_id(),
            "ledgers": counter.count,
            "bookies": [
                {"id": bookie, "state": modes.get(bookie, "down"), **await _addresses(cluster, bookie)}
                for bookie in sorted({*known, *modes})
            ],
        }


@asynccontextmanager
async def _looking(uri: str, timeout_s: float) -> AsyncIterator[Cluster]:
    """A cluster to look at: nothing is created, neither a file nor a missing LAYOUT."""
    parsed, runtime = parse_uri(uri), real_runtime()
    settings = StoreSettings(operation_timeout_s=timeout_s, create_missing=False)
    async with open_store(parsed, settings=settings, runtime=runtime) as store:
        yield await attach_cluster(store, parsed, runtime, create_layout=False)


async def _addresses(cluster: Cluster, bookie: BookieId) -> dict[str, Any]:
    try:
        info = await cluster.bookies.service_info(bookie)
    except NoSuchNode:
        return {"endpoints": []}
    except DamagedMetadata as error:
        return {"endpoints": [], "problem": str(error)}
    return {"endpoints": [asdict(endpoint) for endpoint in info.endpoints], "properties": dict(info.properties)}


def _print_summary(summary: dict[str, Any]) -> None:
    console = out()
    console.print(f"Cluster at [bold]{escape(summary['uri'])}[/]", soft_wrap=True)
    console.print(f"  layout       {summary['layout']}")
    console.print(f"  instance id  {summary['instance_id'] or 'none'}")
    console.print(f"  ledgers      {summary['ledgers']}")
    if not summary["bookies"]:
        console.print("  bookies      none has ever registered")
        return
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in ("bookie", "state", "endpoints"):
        table.add_column(column)
    colours = {"writable": "green", "readonly": "yellow", "down": "red"}
    for bookie in summary["bookies"]:
        endpoints = ", ".join(f"{e['protocol']} {e['host']}:{e['port']}" for e in bookie["endpoints"])
        state = f"[{colours[bookie['state']]}]{bookie['state']}[/]"
        table.add_row(escape(bookie["id"]), state, escape(endpoints or bookie.get("problem", "")))
    console.print()
    console.print(table)


@app.command(epilog="Example:  quire metadata check zk://zk1:2181/ledgers  (exit code 1 if anything is wrong)")
def check(uri: UriOfExisting = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Read every node of a cluster and report what is damaged or does not belong. Changes nothing."""
    uri = checked(lambda: metadata_uri(uri, named_by="a URI"), as_json=json)
    count, problems = run(_check(uri, timeout, quiet=json), as_json=json)
    if json:
        print_json({"uri": uri, "nodes": count, "problems": [asdict(problem) for problem in problems]})
    else:
        console = out()
        for problem in problems:
            console.print(f"[bold red]{escape(problem.path)}[/]  {escape(str(problem.problem))}", soft_wrap=True)
            if problem.hint:
                console.print(f"  {escape(problem.hint)}", soft_wrap=True)
        verdict = "[bold red]" + _plural(len(problems), "problem") + "[/]" if problems else "[green]no problems[/]"
        console.print(f"{_plural(count, 'node')} checked, {verdict}")
    if problems:
        raise typer.Exit(FAILED)


async def _check(uri: str, timeout_s: float, *, quiet: bool) -> tuple[int, list[Finding]]:
    problems = []
    async with _looking(uri, timeout_s) as cluster:
        with counting("checking nodes", quiet=quiet) as counter:
            async for finding in check_cluster(cluster):
                counter.step()
                if finding.problem:
                    problems.append(finding)
    return counter.count, problems


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
