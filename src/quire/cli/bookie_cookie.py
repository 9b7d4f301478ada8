"""`quire bookie cookie`: whose disks these are, and what to do when a bookie refuses them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from quire.cli.default_uri import metadata_uri
from quire.cli.operating import Json, Metadata, Timeout, Yes, agreed
from quire.cli.output import FAILED, checked, out, print_json, run
from quire.errors import InvalidArgument
from quire.types import bookie_id

app = typer.Typer(help="Whose disks these are: look at a bookie's cookie, and repair it.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", metavar="DIR", help="The bookie's data folder, as it is started with.")]
Journals = Annotated[
    list[Path] | None, typer.Option("--journal", metavar="DIR", help="Its journal folders, in their order. Repeat.")
]
MovesWith = Annotated[
    Path | None, typer.Option(metavar="DIR", help="The folder that it may be moved with, if it is started so.")
]
Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="The bookie. Default: as its folder says.")]


@app.command(epilog="Example:  quire bookie cookie show bookie-1 --metadata sqlite:./metadata.db")
def show(
    bookie: Annotated[str, typer.Argument(metavar="ID", help="The bookie.")],
    metadata: Metadata = None,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Show the cookie that the metadata store has of a bookie."""

    async def work() -> dict[str, Any]:
        from quire.metadata import StoreSettings, open_cluster

        settings = StoreSettings(operation_timeout_s=timeout, create_missing=False)
        async with open_cluster(metadata_uri(metadata), settings=settings) as cluster:
            stored = await cluster.bookies.cookie(bookie_id(bookie))
        if stored is None:
            raise InvalidArgument(
                f"bookie {bookie!r} has no cookie", hint="`quire bookie status` lists those that have."
            )
        cookie = stored.cookie
        return {
            "bookie_id": cookie.bookie_id,
            "journal_dirs": list(cookie.journal_dirs),
            "ledger_dirs": list(cookie.ledger_dirs),
            "instance_id": cookie.instance_id,
            "layout_version": cookie.layout_version,
        }

    found = run(work(), as_json=json)
    if json:
        print_json(found)
        return
    for name, value in found.items():
        shown = ", ".join(value) if isinstance(value, list) else str(value)
        out().print(f"{name:16} {escape(shown)}", soft_wrap=True)


@app.command(epilog="Example:  quire bookie cookie repair --data ./bookie-1 --metadata sqlite:./metadata.db")
def repair(
    data: Data,
    journal: Journals = None,
    moves_with: MovesWith = None,
    id: Id = None,
    metadata: Metadata = None,
    yes: Yes = False,
    json: Json = False,
    timeout: Timeout = 10.0,
) -> None:
    """Find out why a bookie refuses its folders, say what to do, and do it where nothing can be lost."""
    from quire.app.bookie import BookieOptions

    options = BookieOptions("", data, tuple(journal or ()), moves_with=moves_with, id=id)
    uri = checked(lambda: metadata_uri(metadata), as_json=json)
    found = run(_examine(uri, options, timeout), as_json=json)
    if not json:
        out().print(f"[bold]{escape(found['bookie_id'])}[/]  {found['case']}", soft_wrap=True)
        for detail in found["details"]:
            out().print(f"  {escape(detail)}", soft_wrap=True)
    if found["repair"] is not None:
        if not checked(lambda: agreed(f"{found['repair']}?", yes=yes, json=json), as_json=json):
            raise typer.Exit(FAILED)
        found = run(_repair(uri, options, timeout), as_json=json) | {"repaired": True}
    if json:
        print_json(found)
    else:
        out().print("Done: start the bookie." if found["repaired"] else escape(found["advice"]), soft_wrap=True)
    if not found["repaired"] and not found["fine"]:
        raise typer.Exit(FAILED)


async def _examine(uri: str, options: Any, timeout_s: float) -> dict[str, Any]:
    from quire.bookie.cookie_repair import diagnose, examine

    async with _opened(uri, options, timeout_s) as parts:
        return _told(diagnose(await examine(*parts)))


async def _repair(uri: str, options: Any, timeout_s: float) -> dict[str, Any]:
    from quire.bookie.cookie_repair import repair

    async with _opened(uri, options, timeout_s) as parts:
        return _told(await repair(*parts))


@asynccontextmanager
async def _opened(uri: str, options: Any, timeout_s: float) -> AsyncIterator[tuple[Any, Any, Any, Any]]:
    """Everything that the work needs. Whose folder it is, the folder says, unless it was lost."""
    from quire.bookie.identity import stored_bookie_id
    from quire.metadata import StoreSettings, open_cluster
    from quire.runtime import real_runtime

    runtime = real_runtime()
    settings = StoreSettings(operation_timeout_s=timeout_s, create_missing=False)
    try:
        folders = options.settings().folders
        named = bookie_id(options.id) if options.id else await stored_bookie_id(runtime.disk, folders.data)
        if named is None:
            raise InvalidArgument(f"{folders.data!r} does not say whose it is", hint="Say which bookie with --id.")
        async with open_cluster(uri, settings=settings, runtime=runtime) as cluster:
            yield runtime, folders, cluster, named
    finally:
        await runtime.disk.aclose()


def _told(found: Any) -> dict[str, Any]:
    return {
        "bookie_id": found.bookie_id,
        "case": str(found.case),
        "details": list(found.details),
        "repair": found.repair,
        "advice": found.advice,
        "fine": found.case.name in ("MATCHES", "FIRST_START"),
        "repaired": False,
    }
