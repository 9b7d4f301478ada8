"""What the sink's commit does on real bookies, without Spark."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from quire.codec.stream_metadata.sinks import SinkBatch
from quire.errors import StreamSealed
from quire.spark import client_cache
from quire.spark.sink_commit import Part, close_writers, commit_parts, packed
from quire.spark.sink_options import sink_options
from quire.testing.local import local_cluster

pytestmark = pytest.mark.timeout(120)


def test_a_small_batch_is_recognised_when_its_stream_has_been_sealed_since(tmp_path: Path) -> None:
    with local_cluster(tmp_path / "data") as cluster:
        schema = StructType([StructField("payload", BinaryType())])
        options = sink_options({"uri": cluster.uri, "stream": "s"}, schema, overwrite=False)
        table = pa.table({"payload": pa.array([b"a"], pa.binary())})

        def commit(number: int) -> bool:
            part = Part(0, None, packed(table), 1, None)
            return commit_parts(options, SinkBatch("q", number, "q"), [part], txid=1).is_new

        try:
            assert commit(0)
            close_writers()  # As if the query had ended.
            with cluster.connect_sync() as client:
                client.seal_stream("s")
            assert not commit(0)
            with pytest.raises(StreamSealed):
                commit(1)
        finally:
            close_writers()
            client_cache.close_all()
