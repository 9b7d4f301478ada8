"""The root of the `quire` command."""

import atexit
import gc
from typing import Annotated, Final

import typer

from quire import __version__
from quire.cli.lazy import Deferred, group_with

_DATA: Final = "Streams"
_CLUSTER: Final = "Clusters"
_JOBS: Final = "Jobs on Spark"
_NEW_OBJECTS: Final = 50_000

# In the order of the help. Modules are imported when one of their commands is called.
COMMANDS: Final = (
    Deferred("stream", "quire.cli.stream", "Streams: create, look at, truncate, seal and delete them.", _DATA),
    Deferred("write", "quire.cli.write", "Append records to a stream: lines, files, or JSON.", _DATA, is_group=False),
    Deferred("read", "quire.cli.read", "Print the records of a stream.", _DATA, is_group=False),
    Deferred("tail", "quire.cli.tail", "Print the records of a stream as they come.", _DATA, is_group=False),
    Deferred("perf", "quire.cli.perf", "Measure how fast a log is: write, read, delay.", _DATA, is_group=False),
    Deferred("up", "quire.cli.local", "Run a local cluster in the foreground until Ctrl-C.", _CLUSTER, is_group=False),
    Deferred("down", "quire.cli.local", "Stop a local cluster.", _CLUSTER, is_group=False),
    Deferred("status", "quire.cli.local", "Show a local cluster.", _CLUSTER, is_group=False),
    Deferred("bookie", "quire.cli.bookie", "Run a storage node, and ask one how it is.", _CLUSTER),
    Deferred(
        "write-proxy", "quire.cli.write_proxy", "Run a write proxy: many programs write streams through it.", _CLUSTER
    ),
    Deferred(
        "read-proxy", "quire.cli.read_proxy", "Run a read proxy: many programs read streams through it.", _CLUSTER
    ),
    Deferred("proxy", "quire.cli.proxy", "Proxies: list them, see what they own, drain them, move streams.", _CLUSTER),
    Deferred("ring", "quire.cli.ring", "Which proxy a stream belongs to while nobody owns it.", _CLUSTER),
    Deferred(
        "capacity",
        "quire.cli.capacity",
        "Show what is stored, how fast it grows, and when disks will be full.",
        _CLUSTER,
        is_group=False,
    ),
    Deferred(
        "check",
        "quire.cli.check",
        "Hold metadata, bookies, streams and cold storage against each other.",
        _CLUSTER,
        is_group=False,
    ),
    Deferred("rebalance", "quire.cli.rebalance", "Move copies from full bookies to emptier ones, by a plan.", _CLUSTER),
    Deferred("metadata", "quire.cli.metadata", "Set up a cluster's metadata and look at it.", _CLUSTER),
    Deferred(
        "autorecovery",
        "quire.cli.autorecovery",
        "Repair ledgers that lack copies, and see what is being repaired.",
        _CLUSTER,
    ),
    Deferred("ledger", "quire.cli.ledger", "Ledgers: create, write, read, recover and delete them.", _CLUSTER),
    Deferred("sql", "quire.cli.sql", "Query streams with SQL: each stream is a table.", _JOBS, is_group=False),
    Deferred(
        "replay",
        "quire.cli.replay",
        "Copy records of a stream, or of Parquet files, into a stream.",
        _JOBS,
        is_group=False,
    ),
    Deferred(
        "archive", "quire.cli.archive", "Copy completed segments of streams to cold storage.", _JOBS, is_group=False
    ),
    Deferred("audit", "quire.cli.audit", "Read every copy of every entry from its own bookie.", _JOBS, is_group=False),
)

app = typer.Typer(
    name="quire",
    cls=group_with(*COMMANDS),
    help="A distributed log for Python, byte-compatible with Apache BookKeeper and DistributedLog.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Examples:\n\necho hello | quire write greetings\n\nquire read greetings\n\nquire up",
)


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
    # Most of what a short command makes are modules and classes, which stay. To look for garbage among them while they
    # are loaded, and once more at the end, takes a quarter of the CPU of `quire read`.
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)
    app()
