"""A batch: everything of some streams from one position to another, as they were when Spark planned the query.

Readers and partitions go from process to process, so they hold options as they were given, and nothing that is open.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from quire.spark.client_cache import borrowed
from quire.spark.explain import explained
from quire.spark.filters import Bounds
from quire.spark.options import SourceOptions
from quire.spark.planning import Piece, StreamPlan, for_each, matching_some, partitioned
from quire.spark.reading import read_pieces
from quire.spark.schema import Column, projection
from quire.stream.namespace import Namespace
from quire.stream.start import Time, Txid
from quire.types import DLSN

if TYPE_CHECKING:
    import pyarrow as pa


def batch_reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader for these options. Raises `InvalidArgument` for what makes no sense."""
    with explained():
        parsed = SourceOptions.parse(options)
        # Not by default: a reader that takes filters fails unless Spark's own setting for that is on, and Spark 4.3
        # gives what they chose to every scan of the frame.
        kind = FilteringReader if parsed.takes_filters else QuireReader
        return kind({**options, "uri": parsed.uri}, projection(schema))


class PiecesPartition(InputPartition):
    """What one task reads."""

    def __init__(self, pieces: list[Piece]) -> None:
        super().__init__(None)
        self.pieces = pieces


class QuireReader(DataSourceReader):
    """Plans in one process, and reads in others."""

    def __init__(self, options: Mapping[str, str], columns: tuple[Column, ...]) -> None:
        self._uri, self._options, self._columns = options["uri"], options, columns
        self._bounds = Bounds()

    def partitions(self) -> list[InputPartition]:
        with explained(), borrowed(self._uri) as access:
            options = SourceOptions.parse(self._options)
            pieces = access.run(_plan(access.namespace, options, self._bounds))
            groups = partitioned(pieces, options.partitioning)
        return [PiecesPartition(group) for group in groups]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        if not isinstance(partition, PiecesPartition):
            return  # Spark's stand-in where there is nothing to read.
        with explained():
            yield from read_pieces(SourceOptions.parse(self._options), partition.pieces, self._columns)


class FilteringReader(QuireReader):
    """The same where filters of the query tell which segments and entries matter."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        self._bounds = Bounds.of(filters)
        return filters  # They choose entries; which records of those match Spark finds out.


async def _plan(namespace: Namespace, options: SourceOptions, bounds: Bounds) -> list[Piece]:
    async def look(stream: str) -> list[Piece]:
        plan = await StreamPlan.of(namespace, stream)
        end = await plan.find("latest", skip_truncated=True)  # Once: from here on nothing that comes is seen.
        begin = await plan.find(options.start, skip_truncated=not options.fail_on_data_loss)
        if isinstance(options.end, DLSN):
            end = min(end, options.end)
        elif options.end != "latest":
            # A time is a txid here. What was written then, a bit early, is where to begin: as an end it would cut off.
            stop = Txid(options.end.ms) if isinstance(options.end, Time) else options.end
            end = min(end, await plan.find(stop, skip_truncated=True))
        begin, end = await bounds.narrowed(plan, begin, end)
        return bounds.pieces(await plan.pieces(begin, end, skip_truncated=not options.fail_on_data_loss))

    streams = filter(bounds.has_stream, await matching_some(namespace, options.streams))
    return [piece for pieces in await for_each(list(streams), look) for piece in pieces]
