"""`quire ring`: which proxy a stream belongs to while nobody owns it, and which one its readers ask."""

from typing import Annotated

import typer

from quire.cli.output import checked, out, print_json, run
from quire.cli.proxy import Json, Timeout, Uri
from quire.codec.pb import quire_v1_pb2 as pb

app = typer.Typer(help="Which proxy a stream belongs to while nobody owns it.", no_args_is_help=True)

Readers = Annotated[bool, typer.Option("--readers", help="The ring of read proxies instead of write proxies.")]


@app.command(epilog="Example:  quire ring show")
def show(readers: Readers = False, uri: Uri = None, json: Json = False, timeout: Timeout = 10.0) -> None:
    """Show the proxies on the ring, and which part of all streams belongs to each."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import ring_shown

    target = checked(lambda: proxy_uri(uri), as_json=json)
    rows = run(ring_shown(target, _role(readers), timeout_s=timeout), as_json=json)
    if json:
        print_json({"ring": rows})
        return
    for row in rows:
        out().print(f"{row['proxy']:24} {row['share']:6.1%}")


@app.command(epilog="Example:  quire ring lookup orders payments")
def lookup(
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="The streams.")],
    readers: Readers = False,
    uri: Uri = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show which proxies are asked for a stream, in their order, and which one owns it now."""
    from quire.cli.proxy_calls import proxy_uri
    from quire.cli.proxy_work import ring_lookup

    target = checked(lambda: proxy_uri(uri), as_json=json)
    rows = run(ring_lookup(target, streams, _role(readers), timeout_s=timeout), as_json=json)
    if json:
        print_json({"streams": rows})
        return
    for row in rows:
        owner = f"   (owned by {row['owner']})" if row.get("owner") else ""
        out().print(f"{row['stream']}   {' → '.join(row['candidates'])}{owner}", soft_wrap=True)


def _role(readers: bool) -> pb.Role:
    return pb.READ_PROXY if readers else pb.WRITE_PROXY
