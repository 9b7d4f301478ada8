"""Results of queries: as a table for people, as CSV or JSON for programs, and as Parquet for other queries.

Bytes are shown as text where they are text, and in base64 elsewhere: payloads of streams are bytes, and mostly text.
"""

import csv
import json
import os
import sys
from base64 import b64encode
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any, Final

from rich.markup import escape
from rich.table import Table

from quire.cli.ledger_output import plural
from quire.cli.output import out
from quire.errors import InvalidArgument
from quire.spark.failures import told_by

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SHOWN_ROWS_MAX: Final = 1000


class Format(StrEnum):
    """How results are written."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    PARQUET = "parquet"


def write_result(
    frame: "DataFrame", form: Format, output: str | None, watching: AbstractContextManager[None] | None = None
) -> None:
    """Write all rows, to standard output or to a file, and be `watching` while the query runs.

    Raises `InvalidArgument`, and what the query raises.
    """
    if not frame.columns:
        return  # A statement that answers nothing, such as one that makes a view.
    watching = watching or nullcontext()
    try:
        if form is Format.PARQUET:
            with watching:
                _write_parquet(frame, output)
            return
        with _opened(output) as file:
            # Where people see rows as they come, those are what shows that it goes on.
            is_seen = form is not Format.TABLE and file.isatty()
            with closing(_watched(_rows(frame), watching, up_to_first=is_seen)) as rows:
                {Format.TABLE: _write_table, Format.CSV: _write_csv, Format.JSON: _write_json}[form](frame, rows, file)
    except Exception as error:
        if type(error).__module__.startswith(("pyspark", "py4j")):
            raise told_by(error) from error
        raise


@contextmanager
def _opened(output: str | None) -> Iterator[IO[str]]:
    if output is None:
        yield sys.stdout
        return
    try:
        with open(output, "x", encoding="utf-8", newline="") as file:
            yield file
    except OSError as error:
        raise InvalidArgument(
            f"{output!r} cannot be written: {error.strerror}", hint="Give --output a file that is not there yet."
        ) from error


def _rows(frame: "DataFrame") -> Iterator[Any]:
    return frame.toLocalIterator(prefetchPartitions=True)


def _watched(rows: Iterator[Any], watching: AbstractContextManager[None], *, up_to_first: bool) -> Generator[Any]:
    """The rows, the first of them or all under the eyes of `watching`."""
    with watching:
        if not up_to_first:
            yield from rows
            return
        first = list(islice(rows, 1))
    yield from chain(first, rows)


def _write_table(frame: "DataFrame", rows: Generator[Any], file: IO[str]) -> None:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name, kind in frame.dtypes:
        is_number = kind in ("bigint", "int", "double", "float", "smallint", "tinyint") or kind.startswith("decimal")
        table.add_column(escape(name), justify="right" if is_number else "left", overflow="fold")
    shown = [[escape(_shown(value)) for value in row] for row in islice(rows, SHOWN_ROWS_MAX)]
    is_cut = next(rows, None) is not None
    rows.close()  # Nothing is watched any more: what follows goes to the same terminal, perhaps.
    for row in shown:
        table.add_row(*row)
    console = out()
    console.file = file
    console.print(table)
    console.print(f"[dim]{_ending(len(shown), is_cut=is_cut)}[/]")


def _ending(rows: int, *, is_cut: bool) -> str:
    return f"The first {rows} rows. CSV, JSON and Parquet have all." if is_cut else plural(rows, "row", "rows")


def _write_csv(frame: "DataFrame", rows: Iterator[Any], file: IO[str]) -> None:
    writer = csv.writer(file)
    writer.writerow(frame.columns)
    writer.writerows([_shown(value, null="") for value in row] for row in rows)


def _write_json(frame: "DataFrame", rows: Iterator[Any], file: IO[str]) -> None:
    names = frame.columns
    for row in rows:
        told = {name: _plain(value) for name, value in zip(names, row, strict=True)}
        file.write(json.dumps(told, ensure_ascii=False) + "\n")


def _write_parquet(frame: "DataFrame", output: str | None) -> None:
    """One file; or, if the name ends with a slash, a folder of files that Spark writes in parallel."""
    if output is None:
        raise InvalidArgument("Parquet is no text", hint="Say where it goes with --output result.parquet.")
    if os.path.exists(output):
        raise InvalidArgument(f"{output!r} is there already", hint="Give --output a name that is not there yet.")
    if output.endswith("/"):
        frame.write.mode("errorifexists").parquet(output)
        return
    import pyarrow.parquet as pq

    pq.write_table(frame.toArrow(), output, compression="zstd")


# --- Values


def _shown(value: Any, *, null: str = "NULL") -> str:
    if value is None:
        return null
    plain = _plain(value)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """What JSON can say."""
    for kind, convert in _CONVERSIONS:
        if isinstance(value, kind):
            return convert(value)
    return value


def _bytes(value: bytes | bytearray) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64encode(value).decode()


def _row(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return {name: _plain(each) for name, each in value.asDict().items()}
    return [_plain(each) for each in value]


_CONVERSIONS: Final[Sequence[tuple[Any, Callable[[Any], Any]]]] = (
    ((bytes, bytearray), _bytes),
    (datetime, lambda value: value.isoformat(sep=" ")),
    (date, str),
    (Decimal, str),
    (dict, lambda value: {_shown(key): _plain(each) for key, each in value.items()}),
    ((list, tuple), _row),
)


def statements(lines: Iterable[str]) -> Iterator[str]:
    """Statements that end with a semicolon at the end of a line, and whatever is left at the end."""
    gathered = ""
    for line in lines:
        gathered += line if line.endswith("\n") else line + "\n"
        if gathered.rstrip().endswith(";"):
            yield gathered.strip().rstrip(";").strip()
            gathered = ""
    if gathered.strip():
        yield gathered.strip()
