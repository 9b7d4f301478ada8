"""What people read when a write fails: what happened, whether it may be in the stream, and what to do."""

import traceback

import pytest
from pyspark.sql.types import BinaryType, StructType

from quire.errors import MetadataOutcomeUnknown, QuireError, StreamOwned
from quire.spark import sink
from quire.spark.sink import QuireBatchWriter, QuireStreamWriter, SinkMessage
from quire.spark.sink_commit import Part
from quire.spark.sink_options import sink_options

LOST, OWNED = MetadataOutcomeUnknown("the answer was lost", hint="Commit it again."), StreamOwned("owned by another")


@pytest.mark.parametrize(
    ("writes", "error", "told"),
    [
        ("nameless", LOST, ["It may be in the stream, and a second run would write it twice"]),
        ("named", LOST, ["It may be in the stream. Run it again under the same txnId"]),
        ("stream", LOST, ["Start the query again from its checkpoint"]),
        ("named", OWNED, ["more seconds of lockTimeout.", "put nothing into the stream."]),
        ("stream", OWNED, ["more seconds of lockTimeout.", "Start the query again from its checkpoint"]),
    ],
)
def test_an_error_ends_with_whether_the_write_may_be_in_the_stream(
    monkeypatch: pytest.MonkeyPatch, writes: str, error: QuireError, told: list[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise type(error)(str(error), hint=error.hint)

    monkeypatch.setattr(sink, "commit_parts", fail)
    given = {"uri": "distributedlog://zk1:2181/ns", "stream": "s", "txnId": "a" if writes == "named" else ""}
    options = sink_options(given, StructType().add("payload", BinaryType()), overwrite=False)
    message = SinkMessage(Part(0, None, None, 0, None), "query", 1)
    query, batch = QuireStreamWriter(options, 1), QuireBatchWriter(options, 1)
    with pytest.raises(type(error)) as failed:
        query.commit([message], 0) if writes == "stream" else batch.commit([message])
    lines = "".join(traceback.format_exception(failed.value)).splitlines()
    assert str(error) in lines[-len(told) - 1]
    for line, words in zip(lines[-len(told) :], told, strict=True):
        assert words in line
