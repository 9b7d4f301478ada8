"""Tables of Spark's catalog: `CREATE TABLE … USING quire OPTIONS (…)`.

Spark keeps the options of a table, and gives them to a source in Python once: when the table is made and its columns
are asked for. A query is given the stored columns later, and no options. So the options go along with the columns, as
metadata of the first one.

That needs columns which the source names: where a table lists its own, the error says so. It is of no use to writers,
for the columns that Spark tells them may be those of the table that the rows come from, with its options: they would
write there. So a statement that inserts has to say the options, and the error tells how.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from quire.spark.option_names import given_options
from quire.spark.options import SourceOptions
from quire.spark.schema import TYPES, chosen

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PROVIDER: Final = "provider"  # A property of every table of the catalog, and of nothing else.
_PREFIX: Final = "option."  # Of a table's options, among its properties.
_KEY: Final = "quire.options"
_JSON_TYPES: Final = {"bigint": "long"}  # As Spark calls them there.


def is_table(options: Mapping[str, str]) -> bool:
    """Whether a table of the catalog is being made."""
    return any(name.lower() == _PROVIDER for name in options)


def table_schema(options: Mapping[str, str]) -> "StructType":
    """The columns of a table that is being made, with its options. Raises `InvalidArgument` for options that make no
    sense: otherwise the first query would.
    """
    from pyspark.sql.types import StructType

    given = {name.lower(): value for name, value in options.items()}
    stated = {name.removeprefix(_PREFIX): value for name, value in given.items() if name.startswith(_PREFIX)}
    parsed = SourceOptions.parse(stated)
    kept = {_KEY: json.dumps({**stated, "uri": parsed.uri})}  # A path means the same wherever it is read.
    fields: list[dict[str, object]] = []
    for name in chosen(stated.get("columns")):
        kind = _JSON_TYPES.get(TYPES[name], TYPES[name])
        fields.append({"name": name, "type": kind, "nullable": True, "metadata": {} if fields else kept})
    return StructType.fromJson({"type": "struct", "fields": fields})


def read_options(options: Mapping[str, str], schema: "StructType") -> Mapping[str, str]:
    """What a query was told: by itself, and by the table that it reads, unless it says which stream."""
    given = given_options(options, writes=False)
    if any(name in given for name in ("uri", "stream", "path", "paths")):
        return options
    kept = next((field.metadata[_KEY] for field in schema.fields if _KEY in field.metadata), None)
    return given if kept is None else {**json.loads(kept), **given}
