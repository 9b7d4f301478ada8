"""SQL over streams: every stream of a namespace is a table.

    query(spark, "file:./data", "SELECT count(*), max(time) FROM orders").show()
    create_views(spark, "file:./data", ["orders"])       # for queries of your own, spark.sql("… FROM orders")

A table is a temporary view of the session: it has the records that were there when it was read for the first time.
Names that are no plain words are written in backticks, as SQL wants it: `` `eu/orders` ``. Making a view costs a few
round trips to Python, so those are made that a statement mentions; `SHOW TABLES` mentions all.

Invariant FiltersOfOneScan: filters choose what is read only where one scan is all that a view is made for. Spark 4.3
keeps what filters chose with the table, not with the scan, and would give it to the next scan, whatever that asks for.
So users have no option for it: a frame may always be used again.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from quire.spark.client_cache import borrowed, direct_uri
from quire.spark.failures import spark_errors, told_by
from quire.spark.option_names import FILTERING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LISTS_ALL: Final = re.compile(r"\bshow\s+(tables|views)\b", re.IGNORECASE)
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_SCAN: Final = "RelationV2["
_FILTER: Final = "Filter "


def query(spark: "SparkSession", uri: str, statement: str) -> "DataFrame":
    """The result of a statement in which streams are tables. Nothing is read before the result is asked for.

    Raises `InvalidArgument` for what is no SQL, or names no table, and what opening the log raises.
    """
    create_views(spark, uri, mentioned(statement, stream_names(uri)))
    return _result(spark, statement)


def query_once(spark: "SparkSession", uri: str, statement: str) -> "DataFrame":
    """The same for a result that is taken as it is, and not built upon: `WHERE txid > …` skips whole segments then, if
    the statement reads one stream, once."""
    frame = query(spark, uri, statement)
    if spark.conf.get(_PUSHDOWN, "false") != "true" or not _scans_once(frame):
        return frame
    wanted = mentioned(statement, stream_names(uri))
    create_views(spark, uri, wanted, _choosing=True)
    try:
        return _result(spark, statement)
    finally:
        create_views(spark, uri, wanted)  # Views of other views read these later, any number of times.


def _result(spark: "SparkSession", statement: str) -> "DataFrame":
    try:
        return spark.sql(statement)
    except spark_errors() as error:
        raise told_by(error) from error


def _scans_once(frame: "DataFrame") -> bool:
    """Whether the plan has one scan, and a filter. One that was a command is done, and has none."""
    if not hasattr(frame, "_jdf"):
        return False  # Spark Connect: the plan is elsewhere.
    try:
        plan: str = frame._jdf.queryExecution().optimizedPlan().treeString()
    except spark_errors() as error:
        raise told_by(error) from error
    return plan.count(_SCAN) == 1 and _FILTER in plan


def stream_names(uri: str) -> list[str]:
    """Every stream there is."""
    with borrowed(uri) as access:
        return access.run(access.namespace.list_streams())


def mentioned(statement: str, names: Iterable[str]) -> list[str]:
    """Those of the streams that a statement is about, as far as its text tells: all whose names are in it."""
    if _LISTS_ALL.search(statement):
        return list(names)
    text = statement.casefold().replace("``", "`")
    return [name for name in names if name.casefold() in text]


def create_views(
    spark: "SparkSession", uri: str, streams: Sequence[str] | None = None, *, _choosing: bool = False
) -> list[str]:
    """Make a temporary view of each stream, or of all, and return how they are written in SQL."""
    where = direct_uri(uri)
    made = []
    for stream in stream_names(uri) if streams is None else streams:
        options = {"uri": where, "stream": stream} | ({FILTERING: "true"} if _choosing else {})
        listed = ", ".join(f"{name} {_literal(value)}" for name, value in options.items())
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {quoted(stream)} USING quire OPTIONS ({listed})")
        made.append(quoted(stream))
    return made


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
