"""The columns of a stream in Spark, and which of them a query asked for.

    stream    STRING      the stream's name
    dlsn      STRING      the record's place, as positions are written: 3:17:0
    segment   BIGINT      the three numbers of the place
    entry     BIGINT
    slot      BIGINT
    txid      BIGINT
    time      TIMESTAMP   the txid as milliseconds since 1970; NULL where that would be no year of four digits
    payload   BINARY

Spark does not tell a source which columns a query needs. So a schema of the user's, or the option `columns`, chooses
among these: what is left out is neither decoded nor copied.
"""

import difflib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from quire.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TYPES: Final = {
    "stream": "string",
    "dlsn": "string",
    "segment": "bigint",
    "entry": "bigint",
    "slot": "bigint",
    "txid": "bigint",
    "time": "timestamp",
    "payload": "binary",
}
ALL: Final = tuple(TYPES)

_HINT: Final = f"The columns of a stream are {', '.join(f'{name} {kind.upper()}' for name, kind in TYPES.items())}."


class Column(NamedTuple):
    """One column of the result: what is in it, how the user calls it, and whether Spark should reckon with NULL."""

    source: str
    name: str
    is_nullable: bool = True


def ddl(columns: Sequence[str]) -> str:
    """The schema of these columns as Spark reads it."""
    return ", ".join(f"{name} {TYPES[name].upper()}" for name in columns)


def chosen(option: str | None) -> tuple[str, ...]:
    """What the option `columns` says: names with commas, all if there is none. Raises `InvalidArgument`."""
    if option is None:
        return ALL
    names = tuple(name.strip().lower() for name in option.split(",") if name.strip())
    for name in names:
        if name not in TYPES:
            raise _no_column(name)
    if not names or len(set(names)) != len(names):
        raise InvalidArgument(f"columns={option!r} names no columns, or one of them twice", hint=_HINT)
    return names


def projection(schema: "StructType") -> tuple[Column, ...]:
    """The columns that a schema of Spark's asks for. Raises `InvalidArgument`."""
    columns: list[Column] = []
    for field in schema.fields:
        source, kind = field.name.lower(), field.dataType.simpleString()
        if source not in TYPES:
            raise _no_column(field.name)
        if kind != TYPES[source]:
            cast = f" Cast it in the query: CAST({source} AS {kind.upper()})."
            raise InvalidArgument(
                f"column {field.name!r} of a stream is {TYPES[source].upper()}, and not {kind.upper()}",
                hint=_HINT + cast,
            )
        if source in {column.source for column in columns}:
            raise InvalidArgument(f"the schema has column {field.name!r} twice", hint=_HINT)
        if source == "time" and not field.nullable:
            raise InvalidArgument("column 'time' may be NULL: not every txid is a time", hint=_HINT)
        columns.append(Column(source, field.name, bool(field.nullable)))
    if not columns:
        raise InvalidArgument("the schema has no columns", hint=_HINT)
    return tuple(columns)


def _no_column(name: str) -> InvalidArgument:
    near = difflib.get_close_matches(name.lower(), ALL, 1)
    return InvalidArgument(
        f"a stream has no column {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""), hint=_HINT, column=name
    )
