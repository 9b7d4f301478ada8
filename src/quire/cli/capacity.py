"""`quire capacity`: what is stored, how fast that grows, when a disk is full, and what if."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from quire.app.capacity import Survey, survey
from quire.cli.ledger_output import plain_table
from quire.cli.operating import Json, Metadata, Namespaces, Timeout, on_cluster
from quire.cli.output import checked, out, print_json
from quire.errors import InvalidArgument
from quire.protocol.capacity import Forecast, OwnerForecast, Projection, WhatIf, by_namespace, forecast
from quire.protocol.space import shown_bytes
from quire.types import BookieId, Quorum

app = typer.Typer()

_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
_DAYS: Final = {"s": 1 / 86_400, "m": 1 / 1_440, "h": 1 / 24, "d": 1.0, "w": 7.0}


@app.command(epilog="Examples:  quire capacity  ·  quire capacity --retention 7d --lose bookie-2")
def capacity(
    metadata: Metadata = None,
    uri: Namespaces = None,
    streams: Annotated[bool, typer.Option("--streams", help="A line for each stream, not for each namespace.")] = False,
    quorum: Annotated[
        str | None, typer.Option(metavar="E/W/A", help="What if all new ledgers had these quorums, such as 3/2/2?")
    ] = None,
    retention: Annotated[
        str | None, typer.Option(metavar="TIME", help="What if every stream kept no more than this, such as 7d or 12h?")
    ] = None,
    add_bookies: Annotated[int, typer.Option(metavar="N", min=0, help="What if there were so many more?")] = 0,
    lose: Annotated[str | None, typer.Option(metavar="BOOKIE", help="What if this bookie were lost for good?")] = None,
    window: Annotated[str, typer.Option(metavar="TIME", help="How far back to look for how fast streams grow.")] = "7d",
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw how disks fill up: a .png or .svg file.")
    ] = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Show what is stored, how fast it grows, and when disks will be full. Changes nothing."""
    what_if = checked(lambda: _what_if(quorum, retention, add_bookies, lose), as_json=json)
    window_days = checked(lambda: days_of(window), as_json=json)
    if plot is not None:
        checked(lambda: _check_picture(plot), as_json=json)  # Before anybody waits for a cluster.
    found = on_cluster(survey, metadata=metadata, namespaces=uri, json=json, timeout_s=timeout)
    told = checked(lambda: forecast(found.capacity, what_if, window_days=window_days), as_json=json)
    if plot is not None:
        checked(lambda: _draw(plot, found, what_if, window_days), as_json=json)
    if json:
        print_json(_as_json(found, told))
    else:
        _show(found, told, streams=streams)


def _what_if(quorum: str | None, retention: str | None, add_bookies: int, lose: str | None) -> WhatIf:
    return WhatIf(
        quorum=None if quorum is None else quorum_of(quorum),
        retention_days=None if retention is None else days_of(retention),
        added_bookies=add_bookies,
        lost=None if lose is None else BookieId(lose),
    )


def quorum_of(text: str) -> Quorum:
    """Ensemble, write quorum and ack quorum, written 3/2/2. Raises `InvalidArgument`."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() for part in parts):
        raise InvalidArgument(f"{text!r} are no quorums", hint="Write ensemble, write and ack quorum: 3/2/2.")
    return Quorum(*map(int, parts))


def days_of(text: str) -> float:
    """A time such as 90m, 12h, 7d or 2w, in days. Raises `InvalidArgument`."""
    match = _TIME.fullmatch(text)
    if match is None or float(match[1]) == 0:
        raise InvalidArgument(f"{text!r} is no time", hint="Write a number and s, m, h, d or w: 12h, 7d.")
    return float(match[1]) * _DAYS[match[2]]


def _check_picture(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".svg"):
        raise InvalidArgument(f"{str(path)!r} is no name of a picture", hint="Let it end in .png or .svg.")
    if not path.parent.is_dir():
        raise InvalidArgument(f"{str(path)!r} cannot be written: there is no folder {str(path.parent)!r}")


def _draw(path: Path, found: Survey, what_if: WhatIf, window_days: float) -> None:
    from quire.cli.capacity_plot import draw  # And with it matplotlib, which only drawings need.

    draw(path, Projection(found.capacity, what_if, window_days=window_days))


# --- What is shown


def _as_json(found: Survey, told: Forecast) -> dict[str, Any]:
    return {
        "bookies": [asdict(each) for each in told.bookies],
        "namespaces": [asdict(each) for each in by_namespace(told.owners, found.namespaces)],
        "streams": [asdict(each) for each in told.owners],
        "days_to_first_full": told.days_to_first_full,
        "is_guess": told.is_guess,
        "notes": [*told.notes, *found.problems],
    }


def _show(found: Survey, told: Forecast, *, streams: bool) -> None:
    console = out()
    table = plain_table("bookie", "state", "size", "free", "stored", "reclaimable", "growth a day", "full in")
    for each in told.bookies:
        table.add_row(
            escape(each.bookie),
            "writable" if each.is_writable else "readonly",
            shown_bytes(each.total_bytes),
            shown_bytes(each.free_bytes),
            shown_bytes(each.stored_bytes),
            shown_bytes(each.reclaimable_bytes),
            shown_bytes(round(each.growth_bytes_per_day)),
            "" if told.is_guess else shown_days(each.days_to_full),
        )
    console.print(table)
    console.print()
    owners: list[OwnerForecast] = list(told.owners) if streams else by_namespace(told.owners, found.namespaces)
    table = plain_table("stream" if streams else "namespace", "stored", "reclaimable", "growth a day", "kept for")
    for owner in owners:
        table.add_row(
            escape(owner.owner),
            shown_bytes(owner.stored_bytes),
            shown_bytes(owner.reclaimable_bytes),
            shown_bytes(round(owner.growth_bytes_per_day)),
            "ever" if owner.kept_days is None else shown_days(owner.kept_days),
        )
    console.print(table)
    console.print()
    first = told.days_to_first_full
    if told.is_guess:
        console.print("When the first disk is full cannot be said yet: ask again after a day of writing.")
    elif first is None:
        console.print("No disk fills up, as things are.")
    else:
        console.print(f"The first disk is full in {shown_days(first)}.")
    for note in (*told.notes, *found.problems):
        console.print(f"[yellow]note[/]  {escape(note)}", soft_wrap=True)


def shown_days(days: float | None) -> str:
    """For people: 3.2 days, 5 hours, 4 years."""
    if days is None:
        return "never"
    if days >= 730:
        return f"{days / 365:.3g} years"
    if days >= 2:
        return f"{days:.3g} days"
    hours = days * 24
    return f"{hours:.3g} hours" if hours >= 2 else f"{hours * 60:.3g} minutes"
