"""`quire proxy`: which proxies there are, what they own, and how streams go from one to another."""

from typing import Annotated, Any

import typer
from rich.table import Table

from quire.cli.operating import Yes, agreed
from quire.cli.output import FAILED, checked, out, print_json, run
from quire.codec.pb import quire_v1_pb2 as pb

app = typer.Typer(help="Proxies: list them, see what they own, drain them, move streams.", no_args_is_help=True)

Uri = Annotated[
    str | None,
    typer.Option(
        "--uri",
        envvar="QUIRE_URI",
        metavar="URI",
        help="One of the proxies: quire://host:7400/ns. Default: $QUIRE_URI, else those of ./quire-data.",
        show_default=False,
    ),
]
Proxy = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The proxy, as `quire proxy list` shows it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Give up on any one proxy after this long.")]


@app.command("list", epilog="Example:  quire proxy list --uri quire://127.0.0.1:7400/default")
def list_command(uri: Uri = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Show all proxies that are alive, and how much each has to do. Exit code 1 if one does not answer."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import listed

    target = checked(lambda: proxy_uri(uri), as_json=json)
    rows = run(listed(target, timeout_s=timeout), as_json=json)
    if json:
        print_json({"proxies": rows})
    else:
        _show_table(rows, ("proxy", "role", "status", "streams", "requests_per_s", "bytes_per_s", "region"))
    if any(row["status"] == "SILENT" for row in rows):
        raise typer.Exit(FAILED)


@app.command(epilog="Example:  quire proxy owned 127.0.0.1:7400")
def owned(
    proxy: Annotated[
        str | None, typer.Argument(metavar="[HOST:PORT]", help="One proxy; all write proxies without it.")
    ] = None,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show which streams write proxies own, and how busy each stream is."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import owned_streams

    target = checked(lambda: proxy_uri(uri), as_json=json)
    rows = run(owned_streams(target, proxy, timeout_s=timeout), as_json=json)
    if json:
        print_json({"streams": rows})
    else:
        _show_table(rows, ("stream", "proxy", "state", "epoch", "requests_per_s", "bytes_per_s", "waiting"))


@app.command(epilog="Example:  quire proxy drain 127.0.0.1:7400")
def drain(
    proxy: Proxy,
    rate: Annotated[float, typer.Option(metavar="STREAMS", help="Streams per second; as set without it.")] = 0.0,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Let a write proxy give all its streams to others, and stop. Returns when it has begun."""
    from quire.rpc.serving.methods import DRAIN

    answer = _ask(uri, proxy, DRAIN, pb.DrainRequest(streams_per_s=rate), json=json, timeout_s=timeout)
    _tell(f"{proxy} gives up its streams, and stops then.", {"proxy": proxy, "status": _status(answer)}, json=json)


@app.command(epilog="Example:  quire proxy token billing --days 30 --file tokens.jsonl")
def token(
    principal: Annotated[str, typer.Argument(metavar="NAME", help="Whose it is.")],
    file: Annotated[str, typer.Option(metavar="FILE", help="Where proxies read it: see their --tokens.")],
    days: Annotated[float, typer.Option(metavar="DAYS", help="How long it counts; 0 for ever.")] = 30.0,
    json: Json = False,
) -> None:
    """Make a token, and have proxies know it. It is shown once: the file has a hash. Revoke it by removing its line."""
    import os
    import time
    from pathlib import Path

    from quire.rpc.serving.tokens import new_token

    expires_s = time.time() + days * 86_400 if days > 0 else None
    made, known = new_token(principal, draw=os.urandom, expires_s=expires_s)
    with Path(file).open("a", encoding="utf-8") as tokens:
        tokens.write(known.line() + "\n")
    if json:
        print_json({"token": made, "id": known.id, "principal": principal, "expires": expires_s})
    else:
        out().print(made, soft_wrap=True)


@app.command(epilog="Example:  quire proxy accept 127.0.0.1:7400 --no")
def accept(
    proxy: Proxy,
    yes: Annotated[bool, typer.Option("--yes/--no", help="Whether it takes further streams.")] = True,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Let a write proxy take further streams, or only keep those that it has."""
    from quire.rpc.serving.methods import SET_ACCEPT_NEW_STREAMS

    request = pb.SetAcceptNewStreamsRequest(accept=yes)
    answer = _ask(uri, proxy, SET_ACCEPT_NEW_STREAMS, request, json=json, timeout_s=timeout)
    does = "takes further streams" if yes else "takes no further streams"
    _tell(f"{proxy} {does}.", {"proxy": proxy, "status": _status(answer)}, json=json)


@app.command(epilog="Example:  quire proxy move orders --to 127.0.0.1:7401")
def move(
    stream: Annotated[str, typer.Argument(metavar="STREAM", help="The stream.")],
    to: Annotated[str, typer.Option("--to", metavar="HOST:PORT", help="The write proxy that should own it.")],
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Move a stream to another write proxy. Its writers notice nothing but a short wait."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import moved

    target = checked(lambda: proxy_uri(uri), as_json=json)
    facts = run(moved(target, stream, to, timeout_s=timeout), as_json=json)
    before = facts["from"]
    _tell(f"{stream} is at {to} now" + (f"; it was at {before}." if before else "."), facts, json=json)


@app.command(epilog="Example:  quire proxy balance  (then: quire proxy balance --run)")
def balance(
    run_it: Annotated[bool, typer.Option("--run", help="Make the moves, after they were shown.")] = False,
    max: Annotated[int | None, typer.Option("--max", min=1, metavar="STREAMS", help="Move no more than this.")] = None,
    rest: Annotated[
        float | None, typer.Option(min=0.0, metavar="SECONDS", help="Leave streams alone that came since.")
    ] = None,
    water_mark: Annotated[
        float | None, typer.Option(min=0.0, metavar="BYTES", help="Relieve only proxies with more than this a second.")
    ] = None,
    yes: Yes = False,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 60.0,
) -> None:
    """Show how much write proxies have to do, and which streams would be moved to even it out. Moves nothing without
    --run. What is not said here is as the balancer is set: see `quire write-proxy settings`."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import balance_asked

    target = checked(lambda: proxy_uri(uri), as_json=json)
    request = pb.BalanceRequest(moves_max=max, rest_s=rest, water_mark=water_mark)
    plan = run(balance_asked(target, request, timeout_s=timeout), as_json=json)
    if not json:
        _show_table(_proxy_rows(plan), ("proxy", "streams", "room", "load_per_s", "then_per_s"))
        if plan.moves:
            _show_table(_move_rows(plan), ("stream", "from", "to", "load_per_s"))
        else:
            out().print("No move is worth it.")
    made = pb.BalanceResponse()
    if (
        run_it
        and plan.moves
        and checked(lambda: agreed(f"Move {len(plan.moves)} streams?", yes=yes, json=json), as_json=json)
    ):
        made = run(balance_asked(target, pb.BalanceRequest(moves=plan.moves), timeout_s=timeout), as_json=json)
    failed = [row for row in _move_rows(made) if row["problem"]]
    if json:
        balancer = f"{plan.balancer.host}:{plan.balancer.port}"
        facts = {"balancer": balancer, "proxies": _proxy_rows(plan), "planned": _move_rows(plan)}
        print_json(facts | {"moves": _move_rows(made)})
    elif made.moves:
        for row in failed:
            out().print(f"{row['stream']} was not moved: {row['problem']}", soft_wrap=True, markup=False)
        out().print(f"{len(made.moves) - len(failed)} of {len(made.moves)} streams were moved.")
    elif plan.moves:
        out().print("Nothing was moved: `quire proxy balance --run` does it.")
    if failed:
        raise typer.Exit(FAILED)


def _proxy_rows(plan: pb.BalanceResponse) -> list[dict[str, Any]]:
    return [
        {
            "proxy": f"{each.proxy.host}:{each.proxy.port}",
            "streams": each.streams,
            "room": each.room,
            "load_per_s": each.load,
            "then_per_s": each.load_then,
        }
        for each in plan.proxies
    ]


def _move_rows(plan: pb.BalanceResponse) -> list[dict[str, Any]]:
    return [
        {
            "stream": each.stream,
            "from": f"{each.source.host}:{each.source.port}",
            "to": f"{each.target.host}:{each.target.port}",
            "load_per_s": each.load,
            "problem": each.problem or None,
        }
        for each in plan.moves
    ]


def _ask(uri: str | None, proxy: str, method: Any, request: Any, *, json: bool, timeout_s: float) -> Any:
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import asked

    target = checked(lambda: proxy_uri(uri), as_json=json)
    return run(asked(target, proxy, method, request, timeout_s=timeout_s), as_json=json)


def _status(answer: pb.AdminResponse) -> str:
    return pb.ServerStatus.Name(answer.status)


def _tell(sentence: str, facts: dict[str, Any], *, json: bool) -> None:
    if json:
        print_json(facts)
    else:
        out().print(sentence, soft_wrap=True)


def _show_table(rows: list[dict[str, Any]], columns: tuple[str, ...]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape

    if not rows:
        out().print("There is none.")
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    numbers = {name for name in columns if isinstance(rows[0].get(name), int | float)}
    for name in columns:
        table.add_column(name.replace("_per_s", "/s").replace("_", " "), justify="right" if name in numbers else "left")
    for row in rows:
        table.add_row(*(escape(_shown(row.get(name))) for name in columns))
    out().print(table)


def _shown(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if isinstance(value, float) else str(value)
