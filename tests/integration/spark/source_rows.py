"""The source without Spark: its classes, called as Spark calls them, with everything pickled on the way."""

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from quire.spark.schema import ALL, TYPES
from quire.spark.source import QuireDataSource

_KINDS = {"string": StringType(), "bigint": LongType(), "timestamp": TimestampType(), "binary": BinaryType()}


def schema_of(columns: Sequence[str] = ALL) -> StructType:
    return StructType([StructField(name, _KINDS[TYPES[name]]) for name in columns])


def source(options: Mapping[str, str]) -> QuireDataSource:
    moved: QuireDataSource = pickle.loads(pickle.dumps(QuireDataSource(dict(options))))
    return moved


def batch(options: Mapping[str, str], *columns: str, filters: Sequence[Any] = ()) -> DataSourceReader:
    reader = source(options).reader(schema_of(columns or ALL))
    if filters:
        assert list(reader.pushFilters(list(filters))) == list(filters)
    return reader


def read(reader: Any, partitions: Sequence[InputPartition]) -> list[dict[str, Any]]:
    """As a worker does: reader and partition come there as bytes."""
    moved = pickle.loads(pickle.dumps(reader))
    rows: list[dict[str, Any]] = []
    for partition in partitions:
        for found in moved.read(pickle.loads(pickle.dumps(partition))):
            rows += found.to_pylist()
    return rows


def rows_of(options: Mapping[str, str], *columns: str, filters: Sequence[Any] = ()) -> list[dict[str, Any]]:
    reader = batch(options, *columns, filters=filters)
    return read(reader, reader.partitions())


def places_of(options: Mapping[str, str], filters: Sequence[Any] = ()) -> list[str]:
    return [row["dlsn"] for row in rows_of(options, "dlsn", filters=filters)]
