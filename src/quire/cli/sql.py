"""`quire sql`: questions to streams, one at a time or in a shell."""

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from quire.cli.output import FAILED, checked, err, report
from quire.cli.spark_options import LOCALLY, Conf, Master, spark_session, spark_uri, watching_query
from quire.cli.sql_output import Format, statements, write_result
from quire.cli.sql_shell import typed_lines
from quire.cli.stream_options import Uri
from quire.errors import QuireError
from quire.spark.sql import query_once

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(rich_markup_mode="rich")

Statement = Annotated[
    str | None,
    typer.Argument(metavar="[STATEMENT]", help="What to run. Without it statements are read, each up to a semicolon."),
]
Form = Annotated[Format, typer.Option("--format", "-f", help="How results are written.")]
Output = Annotated[
    str | None,
    typer.Option(
        "--output", "-o", metavar="PATH", help="A new file for the result; for Parquet also a folder, with a slash."
    ),
]
JsonRows = Annotated[bool, typer.Option("--json", help="Print a JSON object for each row, as --format json does.")]


@app.command(
    "sql",
    epilog="Examples:  quire sql 'SELECT count(*) FROM orders'  ·  quire sql -f csv 'SELECT txid, payload FROM "
    "`eu/orders`'  ·  quire sql",
)
def sql_command(
    statement: Statement = None,
    uri: Uri = None,
    form: Form = Format.TABLE,
    output: Output = None,
    master: Master = LOCALLY,
    conf: Conf = None,
    json: JsonRows = False,
) -> None:
    """Query streams with SQL: each stream is a table. A job on Spark; without a statement, a shell."""
    chosen = Format.JSON if json else form

    def write(spark: "SparkSession", frame: Any) -> None:
        write_result(frame, chosen, output, watching_query(spark, quiet=json))

    def work() -> bool:
        where = spark_uri(uri)
        with spark_session(master, conf, name="sql", quick=statement is not None) as spark:
            if statement is not None:
                write(spark, query_once(spark, where, statement.strip().rstrip(";")))
                return True
            return _run_all(spark, where, _given(spark, where), lambda frame: write(spark, frame))

    if not checked(work, as_json=json, in_lines=True):
        raise typer.Exit(FAILED)


def _given(spark: "SparkSession", uri: str) -> Iterator[str]:
    """Statements from a person, or from whatever standard input is."""
    return statements(typed_lines(spark, uri) if sys.stdin.isatty() else sys.stdin)


def _run_all(spark: "SparkSession", uri: str, given: Iterator[str], write: "Callable[[Any], None]") -> bool:
    """Whether all went well. A person may go on after a mistake; a script may not."""
    for statement in given:
        try:
            write(query_once(spark, uri, statement))
        except QuireError as error:
            if not sys.stdin.isatty():
                raise
            report(error, as_json=False)
        except KeyboardInterrupt:
            _cancel(spark)
            err().print(f"[dim]{escape('stopped')}[/]")
    return True


def _cancel(spark: "SparkSession") -> None:
    """What runs in this session. There is no SparkContext behind Spark Connect."""
    from pyspark.sql.utils import is_remote

    if is_remote():
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()
