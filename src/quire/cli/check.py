"""`quire check`: hold metadata, bookies, streams and cold storage against each other, and repair what has no risk."""

from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from quire.app.checking import Checked, Outcome, check, repair
from quire.app.inventory import Operations
from quire.cli.ledger_output import plural
from quire.cli.operating import Json, Metadata, Namespaces, Timeout, Yes, agreed, on_cluster
from quire.cli.output import FAILED, checked, counting, out, print_json
from quire.protocol.findings import Finding, Severity
from quire.stream.staging import STAGED_TTL_S

app = typer.Typer()

_COLOURS: Final = {Severity.LOST: "red", Severity.AT_RISK: "yellow", Severity.UNTIDY: "cyan"}


@app.command(
    "check",
    epilog="Examples:  quire check  ·  quire check --repair  ·  quire check --thorough --json  (exit code 1: findings)",
)
def check_command(
    metadata: Metadata = None,
    uri: Namespaces = None,
    exclusive: Annotated[
        bool,
        typer.Option(
            "--exclusive",
            help="All ledgers of the cluster belong to these streams, and nobody else archives where they do: look for "
            "leaked ledgers and files. Never say so where another application keeps ledgers.",
        ),
    ] = False,
    thorough: Annotated[
        bool,
        typer.Option(
            "--thorough",
            help="Read every copy of every entry, not only the first and the last, and all of each cold file.",
        ),
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Show what can be repaired without a risk, ask, and do it.")
    ] = False,
    staged_ttl: Annotated[
        float,
        typer.Option(
            "--staged-ttl",
            metavar="SECONDS",
            min=0.0,
            help="Take staged ledgers of Spark's sinks for lost that are older. Not less than their `stagedTtl`.",
        ),
    ] = STAGED_TTL_S,
    yes: Yes = False,
    json: Json = False,
    timeout: Timeout = 30.0,
) -> None:
    """Hold metadata, bookies, streams and cold storage against each other. Changes nothing without --repair."""

    async def look(operations: Operations) -> Checked:
        with counting("checking ledgers", quiet=json) as counter:
            return await check(
                operations,
                exclusive=exclusive,
                thorough=thorough,
                staged_ttl_s=staged_ttl,
                on_step=counter.step,
            )

    found = on_cluster(look, metadata=metadata, namespaces=uri, json=json, timeout_s=timeout)
    plan = [each for each in found.findings if each.repair is not None]
    outcomes: list[Outcome] = []
    if not json:
        _show(found)
    if repair and plan:
        if not json:
            _show_plan(plan)
        if checked(lambda: agreed(f"do {plural(len(plan), 'repair', 'repairs')}?", yes=yes, json=json), as_json=json):
            outcomes = _repair(
                plan, metadata, uri, thorough=thorough, staged_ttl_s=staged_ttl, json=json, timeout_s=timeout
            )
    if json:
        print_json(_as_json(found, outcomes))
    repaired = {id(each.finding) for each in outcomes if each.is_done}
    if any(id(each) not in repaired for each in found.findings):
        raise typer.Exit(FAILED)


def _repair(
    plan: list[Finding],
    metadata: str | None,
    uri: list[str] | None,
    *,
    thorough: bool,
    staged_ttl_s: float,
    json: bool,
    timeout_s: float,
) -> list[Outcome]:
    async def work(operations: Operations) -> list[Outcome]:
        with counting("repairing", quiet=json) as counter:
            return await repair(operations, plan, thorough=thorough, staged_ttl_s=staged_ttl_s, on_step=counter.step)

    outcomes = on_cluster(work, metadata=metadata, namespaces=uri, json=json, timeout_s=timeout_s)
    if not json:
        for each in outcomes:
            mark = "[green]done[/]" if each.is_done else "[red]not done[/]"
            out().print(f"{mark}  {escape(each.finding.subject)}: {escape(each.told)}", soft_wrap=True)
    return outcomes


def _show(found: Checked) -> None:
    console = out()
    for each in found.findings:
        colour = _COLOURS[each.severity]
        console.print(f"[{colour}]{each.severity}[/]  [bold]{escape(each.subject)}[/]  {each.kind}", soft_wrap=True)
        console.print(f"  {escape(each.problem)}", soft_wrap=True)
        todo = f"`quire check --repair` can {each.repair}." if each.repair is not None else each.advice
        if todo:
            console.print(f"  {escape(todo)}", soft_wrap=True)
    verdict = (
        f"[red]{plural(len(found.findings), 'finding', 'findings')}[/]" if found.findings else "[green]all is well[/]"
    )
    cold = f", {plural(found.cold_files, 'cold file', 'cold files')}" if found.cold_files else ""
    streams = plural(found.streams, "stream", "streams")
    if not found.namespaces:  # That is no reason to say that there are none.
        streams = "no namespace of streams is known (name one with --uri)"
    console.print(
        f"{plural(found.ledgers, 'ledger', 'ledgers')} on {plural(found.bookies, 'bookie', 'bookies')}, "
        f"{streams}{cold}: {verdict}",
        soft_wrap=True,
    )


def _show_plan(plan: list[Finding]) -> None:
    console = out()
    console.print()
    console.print("What would be done:")
    for each in plan:
        console.print(f"  {escape(each.subject)}: {each.repair}", soft_wrap=True)


def _as_json(found: Checked, outcomes: list[Outcome]) -> dict[str, Any]:
    told = found.to_json()
    told["repairs"] = [
        {"subject": each.finding.subject, "repair": each.finding.repair, "done": each.is_done, "told": each.told}
        for each in outcomes
    ]
    told["findings"] = [asdict(each) for each in found.findings]
    return told
