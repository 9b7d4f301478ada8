"""What commands show that let a bookie go."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.markup import escape

from quire.app.decommission import Decommissioned, Drained, Held, Progress
from quire.cli.capacity import shown_days
from quire.cli.ledger_output import plain_table, plural
from quire.cli.output import err, out, print_json
from quire.protocol.space import shown_bytes
from quire.types import BookieId


def show_drained(done: Drained, *, json: bool) -> None:
    if json:
        print_json(asdict(done))
        return
    state = "takes no more entries" if done.is_readonly else "takes entries"
    out().print(f"[bold]{escape(done.bookie)}[/] {state}.")
    if done.ledgers_open:
        out().print(
            f"{plural(len(done.ledgers_open), 'ledger is', 'ledgers are')} still being written there: "
            f"{', '.join(map(str, done.ledgers_open))}. Their writers move on with their next entry.",
            soft_wrap=True,
        )


def show_held(bookie: BookieId, held: list[Held], *, bytes_per_s: float, json: bool) -> None:
    total = sum(each.bytes for each in held)
    seconds = total / bytes_per_s if bytes_per_s else None
    if json:
        print_json(
            {"bookie": bookie, "ledgers": [asdict(each) for each in held], "bytes": total, "seconds_at_rate": seconds}
        )
        return
    if held:
        table = plain_table("ledger", "size", "state")
        for each in held:
            state = "being written there: its writer is shut out if it does not move on" if each.is_open else ""
            table.add_row(str(each.ledger_id), shown_bytes(each.bytes), state)
        out().print(table)
    lasting = f", about {shown_days(seconds / 86_400)} at this rate" if seconds else ""
    out().print(f"{plural(len(held), 'ledger names', 'ledgers name')} {escape(bookie)}: {shown_bytes(total)}{lasting}.")


def show_decommissioned(done: Decommissioned, *, json: bool) -> None:
    if json:
        print_json(asdict(done))
        return
    console = out()
    console.print(f"{plural(done.copied, 'ledger has', 'ledgers have')} other copies now.")
    for each in done.left:
        console.print(
            f"[red]blocked[/]  ledger {each.ledger_id}, {shown_bytes(each.bytes)}: {escape(each.blocked or '')}",
            soft_wrap=True,
        )
    if done.left and not done.cookie_deleted:
        console.print(
            f"{escape(done.bookie)} is still needed: keep its disk. Run this again once that is solved.", soft_wrap=True
        )
    elif done.left:
        console.print(f"{escape(done.bookie)} is forgotten. These ledgers have fewer copies for good.", soft_wrap=True)
    else:
        console.print(f"No ledger names {escape(done.bookie)} any more. Its disk may be emptied.", soft_wrap=True)


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show how far it is, on a terminal."""
    console = err()
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("copying") as status:

        def show(at: Progress) -> None:
            rest = "" if at.seconds_left is None else f", {shown_days(at.seconds_left / 86_400)} to go"
            done = at.ledgers - at.ledgers_left
            status.update(f"copying: {done} of {at.ledgers} ledgers, {shown_bytes(at.bytes_left)} left{rest}")

        yield show
