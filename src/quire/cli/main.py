"""The root of the `quire` command."""

from typing import Annotated

import typer

from quire import __version__
from quire.cli import bench, bookie, ledger, metadata

app = typer.Typer(
    name="quire",
    help="A distributed log for Python, byte-compatible with Apache BookKeeper and DistributedLog.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(metadata.app, name="metadata")
app.add_typer(bookie.app, name="bookie")
app.add_typer(ledger.app, name="ledger")
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"quire {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version  # Handled by its callback.


def main() -> None:
    """What the `quire` script runs."""
    app()
