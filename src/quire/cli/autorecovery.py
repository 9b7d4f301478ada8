"""`quire autorecovery`: repair ledgers that lack copies, and see what is being repaired."""

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

import typer

from quire.cli.default_uri import metadata_uri
from quire.cli.operating import HttpHost, Json, Metadata, Racks
from quire.cli.output import checked, out, print_json, print_settings, run

T = TypeVar("T")

app = typer.Typer(help="Repair ledgers that lack copies, and see what is being repaired.", no_args_is_help=True)

Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Give up on the metadata after this long.")]


@app.command("run", epilog="Example:  quire autorecovery run --metadata zk://zk1:2181/ledgers")
def run_command(
    metadata: Metadata = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="How others see this process. Default: HOST:PID.")
    ] = None,
    audit: Annotated[bool, typer.Option("--audit/--no-audit", help="Whether it wants to be the auditor.")] = True,
    repair: Annotated[bool, typer.Option("--repair/--no-repair", help="Whether it repairs ledgers.")] = True,
    admin: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics, /healthz and /readyz, or none.")
    ] = "127.0.0.1:0",
    http_host: HttpHost = None,
    set: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="Change a setting: see `quire autorecovery settings`. Repeat."
        ),
    ] = None,
    racks: Racks = None,
    timeout: Timeout = 10.0,
    session: Annotated[
        float, typer.Option(metavar="SECONDS", help="How soon others take over from it when it is silent.")
    ] = 10.0,
) -> None:
    """Audit and repair in the foreground until Ctrl-C or SIGTERM. Any number of these may run."""
    import uvloop

    from quire.app.autorecovery import AutorecoveryOptions, run_autorecovery
    from quire.replication.autorecovery import Roles
    from quire.telemetry.events import configure

    uri = checked(lambda: metadata_uri(metadata), as_json=False)
    configure()
    options = AutorecoveryOptions(
        uri,
        name=name,
        admin=admin,
        http_hosts=tuple(http_host or ()),
        roles=Roles(audits=audit, repairs=repair),
        metadata_timeout_s=timeout,
        session_timeout_s=session,
        overrides=tuple(set or ()),
        racks_file=racks,
    )
    run(run_autorecovery(options), as_json=False, loop_factory=uvloop.new_event_loop)


@app.command(epilog="Example:  quire autorecovery settings  (then: quire autorecovery run --set …)")
def settings(json: Json = False) -> None:
    """List what `quire autorecovery run --set NAME=VALUE` can change, with the defaults."""
    from quire.app.autorecovery import AllSettings
    from quire.app.overrides import setting_names

    print_settings(dict(setting_names(AllSettings())), as_json=json)


@app.command(epilog="Example:  quire autorecovery status")
def status(metadata: Metadata = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Show who is the auditor, whether repairs are on, how many ledgers wait, and when each check last ended."""
    from quire.cli.autorecovery_work import shown_status

    facts = _asked(lambda uri: shown_status(uri, timeout_s=timeout), metadata, json=json)
    if json:
        print_json(facts)
        return
    out().print("Repairs are on." if facts["enabled"] else "Repairs are off: `quire autorecovery enable`.")
    auditor = facts["auditor"]
    _line("auditor", "nobody: start `quire autorecovery run`" if auditor is None else auditor or "of unknown name")
    _line("lost bookies", ", ".join(facts["lost_bookies"]) or "none")
    _line("delay", f"{facts['delay_s']} s before a single lost bookie counts")
    _line("ledgers marked", f"{facts['marked']}, of which {facts['locked']} are being worked on")
    for check, ended in facts["checks"].items():
        _line(f"{check} check", ended or "never ended")


@app.command(epilog="Example:  quire autorecovery enable")
def enable(metadata: Metadata = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Let auditors and workers of the cluster go on, Apache's included."""
    _switch(metadata, True, json=json, timeout_s=timeout)


@app.command(epilog="Example:  quire autorecovery disable  (before maintenance of bookies)")
def disable(metadata: Metadata = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Stop all auditors and workers of the cluster, Apache's included. What is being copied is finished first."""
    _switch(metadata, False, json=json, timeout_s=timeout)


@app.command(epilog="Examples:  quire autorecovery delay 300  ·  quire autorecovery delay")
def delay(
    seconds: Annotated[
        int | None, typer.Argument(metavar="[SECONDS]", help="How long to wait for a lost bookie.", show_default=False)
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show or set how long a single lost bookie is waited for. Setting what it is makes the auditor look now."""
    from quire.cli.autorecovery_work import shown_delay

    found = _asked(lambda uri: shown_delay(uri, seconds, timeout_s=timeout), metadata, json=json)
    if json:
        print_json({"delay_s": found})
    else:
        out().print(f"A single lost bookie is waited for {found} s.")


@app.command(epilog="Example:  quire autorecovery audit")
def audit(metadata: Metadata = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Make the auditor look for lost bookies now, whatever the delay is."""
    from quire.cli.autorecovery_work import trigger_audit

    auditor = _asked(lambda uri: trigger_audit(uri, timeout_s=timeout), metadata, json=json)
    if json:
        print_json({"auditor": auditor})
    else:
        out().print(f"{auditor or 'The auditor'} looks for lost bookies now.", soft_wrap=True)


@app.command("list", epilog="Example:  quire autorecovery list --missing bookie-2")
def list_command(
    missing: Annotated[
        str | None, typer.Option(metavar="BOOKIE", help="Only ledgers that lack this bookie.", show_default=False)
    ] = None,
    metadata: Metadata = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """List the ledgers that are marked because they lack copies, and who repairs them."""
    from quire.cli.autorecovery_work import listed_marks

    rows = _asked(lambda uri: listed_marks(uri, missing, timeout_s=timeout), metadata, json=json)
    if json:
        print_json({"ledgers": rows})
        return
    if not rows:
        out().print("No ledger is marked.")
    for row in rows:
        worker = f"   being repaired by {row['worker'] or 'somebody'}" if row["worker"] is not None else ""
        since = f"   since {row['since']}" if row["since"] else ""
        out().print(f"{row['ledger_id']:>12}   lacks {', '.join(row['missing']) or '?'}{since}{worker}", soft_wrap=True)


def _asked(work: Callable[[str], Coroutine[Any, Any, T]], metadata: str | None, *, json: bool) -> T:
    """Do something on the cluster that is meant, and return what it found."""
    uri = checked(lambda: metadata_uri(metadata), as_json=json)
    return run(work(uri), as_json=json)


def _switch(metadata: str | None, enabled: bool, *, json: bool, timeout_s: float) -> None:
    from quire.cli.autorecovery_work import switch

    changed = _asked(lambda uri: switch(uri, enabled, timeout_s=timeout_s), metadata, json=json)
    if json:
        print_json({"enabled": enabled, "changed": changed})
    else:
        was = "" if changed else ", as they were"
        out().print(f"Repairs are {'on' if enabled else 'off'}{was}.")


def _line(name: str, value: Any) -> None:
    out().print(f"  {name:18} {value}", soft_wrap=True, markup=False)
