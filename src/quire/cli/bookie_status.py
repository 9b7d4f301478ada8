"""`quire bookie status`: what bookies say of themselves through their admin API, for people."""

import asyncio
import json
import urllib.error
import urllib.request
from typing import Any

from rich.markup import escape
from rich.table import Table

from quire.cli.ledger_output import when
from quire.cli.output import out
from quire.errors import NoSuchNode
from quire.metadata import Cluster, StoreSettings, open_cluster
from quire.protocol.space import shown_bytes
from quire.types import BookieId, bookie_id

_COLOURS = {"writable": "green", "readonly": "yellow"}


async def ask_bookies(uri: str, bookie: str | None, *, timeout_s: float) -> list[dict[str, Any]]:
    """The status of one bookie or of all that have a cookie. Those that do not answer say why, as `problem`."""
    settings = StoreSettings(operation_timeout_s=timeout_s, create_missing=False)
    async with open_cluster(uri, settings=settings) as cluster:
        if bookie is not None:
            return [await _ask(cluster, bookie_id(bookie), timeout_s)]
        listing = await cluster.bookies.listing()
        everyone = {*await cluster.bookies.known(), *listing.writable, *listing.readonly}
        return list(await asyncio.gather(*(_ask(cluster, each, timeout_s) for each in sorted(everyone))))


async def _ask(cluster: Cluster, bookie: BookieId, timeout_s: float) -> dict[str, Any]:
    try:
        info = await cluster.bookies.service_info(bookie)
    except NoSuchNode:
        return {"bookie_id": bookie, "ok": False, "state": "down", "problem": "it is not registered"}
    for endpoint in info.endpoints:
        if endpoint.protocol == "http":
            url = f"http://{endpoint.host}:{endpoint.port}/api/v1/bookie/status"
            try:
                return await asyncio.to_thread(_fetch, url, timeout_s)
            except (OSError, ValueError) as error:
                return {"bookie_id": bookie, "ok": False, "state": "silent", "problem": f"{url}: {error}"}
    problem = "it has no admin API: start it with --admin HOST:PORT"
    return {"bookie_id": bookie, "ok": True, "state": "registered", "problem": problem}


def _fetch(url: str, timeout_s: float) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:  # noqa: S310 - it begins with http
        status: dict[str, Any] = json.loads(answer.read())
        return status


def show_bookies(found: list[dict[str, Any]]) -> None:
    console = out()
    if not found:
        console.print("No bookie has ever registered.")
    for number, each in enumerate(found):
        if number:
            console.print()
        state = each["state"]
        console.print(f"[bold]{escape(each['bookie_id'])}[/]  [{_COLOURS.get(state, 'red')}]{state}[/]")
        if "problem" in each:
            console.print(f"  {escape(each['problem'])}", soft_wrap=True)
            continue
        _show(each)


def _show(each: dict[str, Any]) -> None:
    console, details = out(), each["details"]
    garbage = details["garbage"]
    console.print(f"  address      {details['address']}, {details['connections']} connections")
    console.print(f"  disk         {shown_bytes(each['free_bytes'])} free of {shown_bytes(each['total_bytes'])}")
    console.print(f"  write cache  {shown_bytes(details['write_cache_bytes'])}")
    for reason in each["reasons"]:
        console.print(f"  [yellow]note[/]         {escape(reason)}", soft_wrap=True)
    if details["started_unclean"]:
        console.print("  [yellow]note[/]         its last life was cut short; nothing is lost by that")
    for damage in details["journal_damages"]:
        where = f"journal file {damage['file_id']} at {damage['offset']}"
        console.print(f"  [red]damage[/]       {where}: {escape(damage['reason'])}", soft_wrap=True)
    counters = details["garbage_counters"]
    console.print(
        f"  garbage      last pass: {garbage['outcome']}"
        + (f" ({escape(garbage['error'])})" if garbage["error"] else "")
        + f"; {counters['deleted_ledgers']} ledgers deleted, {shown_bytes(counters['reclaimed_bytes'])} reclaimed",
        soft_wrap=True,
    )
    for step in details.get("steps", ()):  # A bookie of an earlier release keeps none.
        console.print(f"  {when(step['at_ms'])}  {escape(step['what'])}", soft_wrap=True)
    if garbage["logs"]:
        table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 2), header_style="dim")
        table.add_column("entry log", justify="right")
        table.add_column("size", justify="right")
        table.add_column("alive", justify="right")
        table.add_column("why it is still there")
        for log in garbage["logs"]:
            size = "?" if log["log_bytes"] is None else shown_bytes(log["log_bytes"])
            alive = "?" if log["live_ratio"] is None else f"{log['live_ratio']:.0%}"
            table.add_row(str(log["log_id"]), size, alive, escape(log["reason"]))
        console.print(table)
