"""The data source `quire` of Spark: batches and streams of records, read from bookies and from cold storage.

    spark.read.format("quire").option("uri", "file:./data").option("stream", "orders").load()

Spark looks for sources in all packages called `pyspark_…`, and finds none if one of them fails to load. So this
module loads nothing but PySpark; what the methods need they load themselves, in the processes that call them.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType


class QuireDataSource(DataSource):
    """`format("quire")`. See docs/reference/spark.md for its options and columns."""

    @classmethod
    def name(cls) -> str:
        return "quire"

    def schema(self) -> StructType | str:
        with _loaded():
            from quire.spark.catalog_tables import is_table, table_schema
            from quire.spark.explain import explained
            from quire.spark.option_names import given_options
            from quire.spark.schema import chosen, ddl
        with explained():
            if is_table(self.options):
                return table_schema(self.options)
            return ddl(chosen(given_options(self.options, writes=False).get("columns")))

    def reader(self, schema: StructType) -> DataSourceReader:
        with _loaded():
            from quire.spark.batch import batch_reader
        return batch_reader(self._stated(schema), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        with _loaded():
            from quire.spark.streaming import stream_reader
        return stream_reader(self._stated(schema), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        with _loaded():
            from quire.spark.sink import batch_writer
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        with _loaded():
            from quire.spark.sink import stream_writer
        return stream_writer(self.options, schema, overwrite)

    def _stated(self, schema: StructType) -> Mapping[str, str]:
        with _loaded():
            from quire.spark.catalog_tables import read_options
            from quire.spark.explain import explained
        with explained():
            return read_options(self.options, schema)


@contextmanager
def _loaded() -> Iterator[None]:
    """Say what to install if a library is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] in ("numpy", "pandas", "pyarrow"):
            error.add_note("Install it in the Python of Spark's driver and workers: pip install 'quirelog[spark]'.")
        raise
