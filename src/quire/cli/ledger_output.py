"""Ledgers as commands show them: their facts for programs, and tables for people."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from rich.markup import escape
from rich.table import Table

from quire.cli.output import err, out, print_json
from quire.metadata import StoredLedger
from quire.protocol.space import shown_bytes
from quire.types import LedgerState

_COUNTED: Final = ("entries", "records", "segments", "size")
_COLOURS: Final = {"open": "green", "in_recovery": "yellow", "closed": "dim"}


@contextmanager
def spinning(what: str, *, quiet: bool) -> Iterator[None]:
    console = err()
    if quiet or not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


def facts(stored: StoredLedger) -> dict[str, Any]:
    metadata, closed = stored.metadata, stored.metadata.state is LedgerState.CLOSED
    return {
        "ledger": stored.ledger_id,
        "state": metadata.state.name.lower(),
        "ensemble": metadata.quorum.ensemble,
        "write_quorum": metadata.quorum.write,
        "ack_quorum": metadata.quorum.ack,
        "digest": None if metadata.digest is None else metadata.digest.name.lower(),
        "entries": metadata.last_entry_id + 1 if closed else None,
        "length": metadata.length if closed else None,
        "created": None if stored.created_ms is None else when(stored.created_ms),
        "custom": {key: value.decode(errors="replace") for key, value in metadata.custom.items()},
        "fragments": [{"first": each.first_entry_id, "bookies": list(each.bookies)} for each in metadata.fragments],
    }


def print_ledger(stored: StoredLedger, *, json: bool, where: str | None = None) -> None:
    """With `where` it is in: for commands that changed it."""
    found = facts(stored) if where is None else {"metadata": where, **facts(stored)}
    if json:
        print_json(found)
        return
    console, state = out(), found["state"]
    console.print(f"[bold]Ledger {stored.ledger_id}[/]  [{_COLOURS[state]}]{state.replace('_', ' ')}[/]")
    if found["entries"] is not None:
        console.print(f"  entries  {plural(found['entries'], 'entry', 'entries')}, {shown_bytes(found['length'])}")
    console.print(f"  quorums  ensemble {found['ensemble']}, write {found['write_quorum']}, ack {found['ack_quorum']}")
    console.print(f"  digest   {found['digest'] or 'not stored'}")
    if found["created"]:
        console.print(f"  created  {found['created']}")
    for key, value in found["custom"].items():
        console.print(f"  custom   {escape(key)} = {escape(value)}", soft_wrap=True)
    table = plain_table("from entry", "bookies")
    for each in found["fragments"]:
        table.add_row(str(each["first"]), escape(", ".join(each["bookies"])))
    console.print()
    console.print(table)


def print_table(stored: list[StoredLedger]) -> None:
    table = plain_table("ledger", "state", "entries", "size", "quorums", "created")
    for found in map(facts, stored):
        quorums = f"{found['ensemble']}/{found['write_quorum']}/{found['ack_quorum']}"
        entries = "" if found["entries"] is None else str(found["entries"])
        size = "" if found["length"] is None else shown_bytes(found["length"])
        state = f"[{_COLOURS[found['state']]}]{found['state'].replace('_', ' ')}[/]"
        table.add_row(str(found["ledger"]), state, entries, size, quorums, found["created"] or "")
    out().print(table)


def plain_table(*columns: str) -> Table:
    """Without lines. What is counted stands on the right."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in _COUNTED else "left")
    return table


def when(milliseconds: int) -> str:
    """A time since 1970, for people and programs."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


def plural(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
