"""What all commands that run on Spark have in common: their options, their session, and how they show progress."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from quire.app.running import running_clusters
from quire.cli.default_uri import stream_uri
from quire.cli.output import err
from quire.embedded.folder import DataFolder
from quire.errors import InvalidArgument
from quire.spark.session import check_installed, session
from quire.spark.tasks import watching_stages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="QUIRE_SPARK_MASTER",
        metavar="URL",
        help="Where the job runs: local[N], spark://host:7077, or sc://host:15002.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark's. May be given several times."),
]

LOCALLY: Final = "local[*]"

# Commands are short, or work in Python: a JVM that starts fast does them more good than one that runs fast.
_QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"

# PySpark logs each error that it also raises.
_REPEATS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")


def spark_uri(given: str | None) -> str:
    """Where the streams are, for processes that read bookies directly: never through proxies, where we can tell."""
    uri = stream_uri(given, creating=False)
    for cluster in running_clusters():
        if cluster.uri == uri:
            return DataFolder(cluster.data).streams().text
    return uri


@contextmanager
def spark_session(master: str, conf: list[str] | None, *, name: str, quick: bool = True) -> Iterator["SparkSession"]:
    """A session for one command. One that is there already is used, and left as it is.

    Raises `MissingExtra`, `NotRunning` without Java, and `InvalidArgument` for a setting that is none.
    """
    check_installed(master)
    settings: dict[str, Any] = {"spark.ui.showConsoleProgress": False, "spark.log.level": "ERROR"}
    if quick and master.startswith("local"):
        settings["spark.driver.extraJavaOptions"] = _QUICK_START
    settings |= parsed_settings(conf or [])
    from pyspark import SparkContext

    for logger in _REPEATS:
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    is_ours = SparkContext._active_spark_context is None  # Which session is active is a matter of threads.
    with _quiet_start() if "spark.log.level" not in parsed_settings(conf or []) else nullcontext():
        spark = session(master, f"quire {name}", **settings)
    try:
        yield spark
    finally:
        if is_ours:
            spark.stop()


def parsed_settings(conf: list[str]) -> dict[str, str]:
    """Raises `InvalidArgument`."""
    found = {}
    for each in conf:
        name, equals, value = each.partition("=")
        if not (name and equals):
            raise InvalidArgument(f"{each!r} is no setting", hint="Write --conf spark.executor.memory=4g.")
        found[name] = value
    return found


@contextmanager
def _quiet_start() -> Iterator[None]:
    """What the JVM and its workers say on standard error is for those who ask with `--conf spark.log.level=…`: errors
    are raised in any case. They keep the one that they were started with.
    """
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def watching_query(spark: "SparkSession", *, quiet: bool) -> Iterator[None]:
    """Show on a terminal how many tasks are done of what the session runs."""
    if quiet or not err().is_terminal:
        yield
        return
    with bar("running the query", quiet=False) as on_progress, watching_stages(spark, on_progress):
        yield


@contextmanager
def bar(what: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Show on a terminal how many tasks are done."""
    console = err()
    if quiet or not console.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Results may go to a file or a pipe meanwhile: they must not end up here.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
