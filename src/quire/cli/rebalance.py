"""`quire rebalance`: move copies from full bookies to emptier ones, by a plan that is made and looked at first."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from quire.app.inventory import Operations
from quire.app.rebalance import Made, make_plan, read_plan, read_racks, run_plan, write_plan
from quire.cli.ledger_output import plain_table, plural
from quire.cli.operating import Json, Metadata, Racks, Timeout, bytes_of, on_cluster
from quire.cli.output import FAILED, checked, counting, out, print_json
from quire.protocol.rebalancing import Plan
from quire.protocol.space import shown_bytes

app = typer.Typer(help="Move copies from full bookies to emptier ones, by a plan.", no_args_is_help=True)


@app.command(epilog="Example:  quire rebalance plan moves.json --max 100GB")
def plan(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Where to write the plan: a new file.")],
    metadata: Metadata = None,
    max: Annotated[
        str | None, typer.Option("--max", metavar="BYTES", help="Move no more than this, such as 100GB.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="How far from its share of a disk a bookie may stay.")
    ] = 0.02,
    racks: Racks = None,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Look at how full bookies are, and write down what to move. Moves nothing."""
    bytes_max = None if max is None else checked(lambda: bytes_of(max), as_json=json)
    rack_map = None if racks is None else checked(lambda: read_racks(racks), as_json=json)

    async def work(operations: Operations) -> Plan:
        made = await make_plan(operations, racks=rack_map, bytes_max=bytes_max, tolerance=tolerance)
        await write_plan(operations, made, file)
        return made

    made = on_cluster(work, metadata=metadata, json=json, timeout_s=timeout)
    if json:
        told = {"file": str(file), "moves": len(made.moves), "bytes": made.bytes}
        levels = {
            name: {level.bookie: level.stored_bytes for level in found}
            for name, found in (("before", made.before), ("after", made.after))
        }
        print_json(told | levels)
        return
    table = plain_table("bookie", "now", "then")
    for before, after in zip(made.before, made.after, strict=True):
        shown = [f"{shown_bytes(each.stored_bytes)} ({100 * each.share:.1f} %)" for each in (before, after)]
        table.add_row(escape(before.bookie), *shown)
    out().print(table)
    if made.moves:
        out().print(
            f"{plural(len(made.moves), 'move', 'moves')}, {shown_bytes(made.bytes)}: `quire rebalance run {file}`"
        )
    else:
        out().print("All bookies have their share: there is nothing to move.")


@app.command(epilog="Example:  quire rebalance run moves.json --rate 32MiB  (Ctrl-C stops it; run it again to go on)")
def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan of `quire rebalance plan`.")],
    metadata: Metadata = None,
    rate: Annotated[
        str, typer.Option(metavar="BYTES", help="Copy no more than this in a second. 0 is no limit.")
    ] = "16MiB",
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Make the moves of a plan that are not made yet. Stop it at any time: the next run goes on."""
    bytes_per_s = checked(lambda: bytes_of(rate), as_json=json)

    async def work(operations: Operations) -> tuple[int, list[Made]]:
        planned = await read_plan(operations, file)
        with counting(f"of {len(planned.moves)} moves made", quiet=json) as counter:
            made = await run_plan(
                operations, planned, file, bytes_per_s=bytes_per_s, on_made=lambda each: counter.step(each.is_done)
            )
        return len(planned.moves), made

    try:
        planned, made = on_cluster(work, metadata=metadata, json=json, timeout_s=timeout)
    except KeyboardInterrupt:
        out().print(f"Stopped. Everything that was moved is in order; `quire rebalance run {file}` goes on.")
        raise typer.Exit(FAILED) from None
    failed = [each for each in made if not each.is_done]
    entries, written = sum(each.copied.entries for each in made), sum(each.copied.written_bytes for each in made)
    if json:
        told = [{"move": each.number, "done": each.is_done, "told": each.told} for each in made]
        print_json({"planned": planned, "moves": told, "entries": entries, "bytes": written, "failed": len(failed)})
    else:
        for each in failed:
            out().print(f"[yellow]not made[/]  move {each.number}: {escape(each.told)}", soft_wrap=True)
        out().print(
            f"{plural(len(made) - len(failed), 'move', 'moves')} of {planned} made in this run: "
            f"{plural(entries, 'entry', 'entries')}, {shown_bytes(written)} copied."
        )
    if failed:
        raise typer.Exit(FAILED)
