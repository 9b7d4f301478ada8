"""What a write may ask for, and what is refused before anything is done."""

from typing import Any

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire.errors import InvalidArgument, InvalidUri
from quire.spark.sink_commit import Part, in_order
from quire.spark.sink_options import Columns, SinkOptions, sink_options

URI = "distributedlog://127.0.0.1:2181/ns"


KINDS: dict[str, DataType] = {
    "BINARY": BinaryType(),
    "STRING": StringType(),
    "BIGINT": LongType(),
    "INT": IntegerType(),
    "TIMESTAMP": TimestampType(),
}


def checked(columns: str, overwrite: bool = False, /, **options: str) -> SinkOptions:
    fields = [column.split() for column in columns.split(", ")]
    schema = StructType([StructField(name, KINDS[kind]) for name, kind in fields])
    return sink_options({"uri": URI, "stream": "s", **options}, schema, overwrite=overwrite)


@pytest.mark.parametrize(
    ("ddl", "options", "columns"),
    [
        ("payload BINARY", {}, Columns("payload", None, None)),
        ("value STRING, txid BIGINT", {}, Columns("value", "txid", None)),
        ("Payload STRING, at BIGINT", {"txid": "AT"}, Columns("Payload", "at", None)),
        ("anything BINARY", {}, Columns("anything", None, None)),
        ("payload BINARY, k INT", {"orderBy": "k"}, Columns("payload", None, "k")),
        ("body STRING, txid BIGINT", {"payload": "body", "orderby": "txid"}, Columns("body", "txid", "txid")),
    ],
)
def test_columns_are_found(ddl: str, options: dict[str, str], columns: Columns) -> None:
    assert checked(ddl, **options).columns == columns


@pytest.mark.parametrize(
    ("ddl", "options", "problem"),
    [
        ("payload INT", {}, "a payload is BINARY or STRING"),
        ("a INT, b INT", {}, "is called payload or value"),
        ("payload BINARY, txid INT", {}, "a txid is BIGINT"),
        ("payload BINARY, time TIMESTAMP", {}, "no place for time TIMESTAMP"),
        ("payload BINARY, stream STRING", {}, "no place for stream STRING"),
        ("payload BINARY", {"txid": "at"}, "there is no column 'at'"),
        ("payload BINARY", {"orderBy": "k"}, "there is no column 'k'"),
        ("payload BINARY", {"payload": "k"}, "there is no column 'k'"),
        ("payload BINARY", {"mode": "fast"}, "there is no mode 'fast'"),
        ("payload BINARY", {"stream": "a,b"}, "not one stream"),
        ("payload BINARY", {"stream": ""}, "option stream is missing"),
        ("payload BINARY", {"compression": "zstd"}, "there is no compression 'zstd'"),
        ("payload BINARY", {"inlineBytes": "9999999"}, "at most"),
        ("payload BINARY", {"lockTimeout": "soon"}, "no number"),
        ("payload BINARY", {"stagedTtl": "-1"}, "out of range"),
        ("payload BINARY", {"createStream": "perhaps"}, "neither true nor false"),
    ],
)
def test_what_cannot_be_written_is_refused(ddl: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        checked(ddl, **options)


def test_who_inserts_into_all_columns_of_a_stream_is_told_how_sql_chooses_some() -> None:
    with pytest.raises(InvalidArgument, match="no place for dlsn STRING") as refused:
        checked("payload BINARY, dlsn STRING")
    assert "the option columns 'payload'" in refused.value.hint


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tnxId", "Did you mean txnId or txid?"),
        ("lockTimout", "Did you mean lockTimeout?"),
        ("compresion", "Did you mean compression?"),
        ("topic", "Use stream"),
        ("kafka.bootstrap.servers", "Use uri"),
        ("zzz", "There are: uri, stream, mode"),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_the_one_that_was_meant(name: str, hint: str) -> None:
    """An option that is ignored would do the wrong thing without a word: a misspelled `txnId` writes a batch twice."""
    with pytest.raises(InvalidArgument, match=f"there is no option '{name.lower()}'") as refused:
        checked("payload BINARY", **{name: "1"})
    assert hint in refused.value.hint


def test_options_of_the_source_and_of_spark_itself_are_left_alone() -> None:
    """A view may be there for both directions, and Spark hands on what it was given for itself."""
    spark = {"checkpointLocation": "/tmp/x", "queryName": "q", "path": "p"}
    checked("payload BINARY", start="latest", failOnDataLoss="false", **spark)


def test_a_stream_is_not_overwritten() -> None:
    with pytest.raises(InvalidArgument, match="cannot be overwritten"):
        checked("payload BINARY", True)


def test_proxies_are_not_written_through() -> None:
    with pytest.raises(InvalidUri, match="leads to proxies"):
        checked("payload BINARY", uri="quire://127.0.0.1:1/")


def test_options_become_settings_of_the_stream() -> None:
    options = checked("payload BINARY", lockTimeout="1.5", createStream="false", compression="LZ4", path="p")
    assert options.overrides == {"lock_timeout_s": 1.5, "create_if_missing": False, "compression": "lz4"}
    assert options.stream == "s"


# --- Parts in order


def part(number: int, keys: tuple[Any, Any] | None = None, *, staged: bool = True, record_bytes: int = 9) -> Part:
    return Part(number, (f"n{number}",) if staged else None, None, record_bytes, keys)  # type: ignore[arg-type]


def test_parts_come_by_partition_and_empty_ones_do_not_come() -> None:
    parts = [part(2), part(0), part(1, record_bytes=0)]
    assert in_order(parts, checked("payload BINARY")) == [part(0), part(2)]


def test_parts_come_by_their_ranges_which_may_touch_and_not_overlap() -> None:
    options = checked("payload BINARY, k INT", orderBy="k")
    low, high = part(1, (1, 5)), part(0, (5, 9))
    assert in_order([high, low], options) == [low, high]
    with pytest.raises(InvalidArgument, match="partitions overlap in 'k'"):
        in_order([high, part(1, (1, 6))], options)
    small = [part(0, (5, 9), staged=False), part(1, (1, 6), staged=False)]
    assert in_order(small, options) == small, "rows that are here are sorted here"
