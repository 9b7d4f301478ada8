"""A streaming query: one process plans micro-batches for as long as the query runs, others read them.

Spark asks over and over how far there is something to read, and has each answer read and stored before the next one.
While there is nothing new the question is held back for a moment, instead of being asked a hundred times a second.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from quire.spark.admission import Limit
from quire.spark.batch import PiecesPartition
from quire.spark.client_cache import Access, borrowed
from quire.spark.explain import explained
from quire.spark.followed_streams import FollowedStreams
from quire.spark.offsets import Offsets, decode_offsets, encode_offsets
from quire.spark.options import SourceOptions
from quire.spark.planning import partitioned
from quire.spark.reading import read_pieces
from quire.spark.schema import Column, projection

if TYPE_CHECKING:
    import pyarrow as pa

WAIT_S: Final = 0.05


def stream_reader(options: Mapping[str, str], schema: StructType) -> DataSourceStreamReader:
    """The reader for these options. Raises `InvalidArgument` for what makes no sense."""
    with explained():
        parsed = SourceOptions.parse(options, is_streaming=True)
        return QuireStreamReader({**options, "uri": parsed.uri}, projection(schema))


class QuireStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans in one process, which keeps what it follows; reads in others, from what partitions say."""

    def __init__(self, options: Mapping[str, str], columns: tuple[Column, ...]) -> None:
        self._uri, self._options, self._columns = options["uri"], options, columns
        self._followed: FollowedStreams | None = None
        self._frozen: Offsets | None = None
        self._latest: dict[str, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": None}

    # --- Where the query is planned

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        with self._following() as (access, followed):
            return encode_offsets(access.run(followed.initial()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        options = self._parsed()
        if options.records_max is not None:
            return ReadMaxRows(options.records_max)
        return ReadAllAvailable() if options.bytes_max is None else ReadMaxBytes(options.bytes_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._following() as (access, followed):
            self._frozen = access.run(followed.latest())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        began = decode_offsets(start)
        with self._following() as (access, followed):
            if self._frozen is None:
                ends = access.run(followed.latest_behind(began, WAIT_S))
                self._latest = encode_offsets(ends)
            else:
                ends = self._frozen
            return encode_offsets(access.run(followed.admitted(began, ends, _limit_of(limit))))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with self._following() as (access, followed):
            options = self._parsed()
            pieces = access.run(followed.pieces(decode_offsets(start), decode_offsets(end)))
            groups = partitioned(pieces, options.partitioning)
        return [PiecesPartition(group) for group in groups]

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing is kept for a query: its checkpoint says how far it is."""

    def stop(self) -> None:
        """Spark need not call this: what is open here is closed when nobody uses it."""

    # --- Where it is read

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, PiecesPartition):
            return
        with explained():
            yield from read_pieces(self._parsed(), partition.pieces, self._columns)

    # --- For both

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self._options, is_streaming=True)

    @contextmanager
    def _following(self) -> Iterator[tuple[Access, FollowedStreams]]:
        with explained(), borrowed(self._uri) as access:
            if self._followed is None or self._followed.namespace is not access.namespace:
                self._followed = FollowedStreams(access.namespace, self._parsed(), time.monotonic)
                access.call_at_close(self._followed.aclose)
            yield access, self._followed


def _limit_of(limit: ReadLimit) -> Limit | None:
    if isinstance(limit, ReadMaxRows):
        return Limit("records", limit.max_rows)
    if isinstance(limit, ReadMaxBytes):
        return Limit("bytes", limit.max_bytes)
    return None
