"""Options, columns and offsets of the source: what is taken, and what a user is told who got one wrong."""

from pathlib import Path

import pytest
from pyspark.sql.types import (
    BinaryType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from quire.errors import InvalidArgument, InvalidUri
from quire.spark.offsets import Offset, decode_offsets, encode_offsets
from quire.spark.options import SourceOptions
from quire.spark.planning import Partitioning
from quire.spark.schema import ALL, Column, chosen, ddl, projection
from quire.stream.start import Txid
from quire.types import DLSN, EntryId, Lssn, SlotId

URI = "distributedlog://zk1:2181/ns"
GIVEN = {"uri": URI, "stream": "orders"}


def parsed(*, is_streaming: bool = False, **options: str) -> SourceOptions:
    return SourceOptions.parse({**GIVEN, **options}, is_streaming=is_streaming)


def schema(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in fields])


# --- Options


def test_two_options_are_enough() -> None:
    options = parsed()
    assert (options.uri, options.streams) == (URI, ("orders",))
    assert (options.start, options.end, options.fail_on_data_loss) == ("earliest", "latest", True)
    assert (options.records_max, options.bytes_max, options.partitioning) == (None, None, Partitioning())
    assert (options.columns, options.takes_filters, options.read_patience_s) == (ALL, False, None)


def test_all_options_are_taken_in_any_case() -> None:
    options = parsed(
        START="tx:17",
        End="3:17:0",
        failondataloss="FALSE",
        maxBytesPerTrigger="64m",
        partitionBytes="1k",
        minPartitions="8",
        readPatience="2.5",
    )
    assert (options.start, options.end) == (Txid(17), DLSN(Lssn(3), EntryId(17), SlotId(0)))
    assert (options.fail_on_data_loss, options.bytes_max) == (False, 64 << 20)
    assert options.partitioning == Partitioning(1024, 8)
    assert options.read_patience_s == 2.5


def test_streams_are_names_and_patterns_each_once() -> None:
    assert parsed(stream="orders, /paid ,orders-*,orders").streams == ("orders", "paid", "orders-*")
    assert SourceOptions.parse({"uri": URI, "path": "orders"}).streams == ("orders",)


def test_where_the_log_is_may_be_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIRE_URI", URI)
    assert SourceOptions.parse({"stream": "orders"}).uri == URI


def test_uris_of_files_mean_the_same_in_every_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert parsed(uri="file:./da%20ta").uri == f"file:{tmp_path}/da%20ta"
    assert parsed(uri="file:./data?namespace=/team").uri == f"file:{tmp_path}/data?namespace=/team"
    local = parsed(uri="distributedlog+sqlite:./data/metadata.db/ns").uri
    assert local == f"distributedlog+sqlite:{tmp_path}/data/metadata.db?namespace=/ns"


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"uri": ""}, "the option uri is missing", "file:./data"),
        ({"stream": " , "}, "the option stream is missing", "orders-*"),
        ({"stream": "a b"}, "'a b' cannot name a stream", "without spaces"),
        ({"start": "yesterday"}, "option start: 'yesterday' is no position in a stream", "earliest, latest, 3:17:0"),
        ({"end": "t:12"}, "option end: 't:12' is no position", "t:2026-01-01"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss is true or false, not 'no'", ""),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger is a number above 0, not '0'", ""),
        ({"maxBytesPerTrigger": "much"}, "maxBytesPerTrigger is a number above 0", "k, m or g"),
        ({"maxBytesPerTrigger": "1m", "maxRecordsPerTrigger": "5"}, "are both given", "choose one"),
        ({"readPatience": "long"}, "option readPatience is a number of seconds, not 'long'", "120"),
        ({"readPatience": "-1"}, "option readPatience is a number of seconds, not '-1'", "120"),
        ({"streams": "orders"}, "there is no option 'streams'", "Did you mean stream?"),
        ({"maxRecordPerTrigger": "5"}, "there is no option 'maxrecordpertrigger'", "maxRecordsPerTrigger"),
        ({"somethingElse": "1"}, "there is no option 'somethingelse'", "There are: uri, stream, start"),
        ({"startingOffsets": "earliest"}, "'startingoffsets', which is one of Kafka's", "Use start"),
        ({"maxOffsetsPerTrigger": "9"}, "'maxoffsetspertrigger', which is one of Kafka's", "Use maxRecordsPerTrigger"),
        ({"kafka.bootstrap.servers": "h:1"}, "'kafka.bootstrap.servers', which is one of", "Use uri"),
        ({"subscribePattern": "a.*"}, "'subscribepattern', which is one of Kafka's", "Use stream"),
        ({"pushdown": "true"}, "a frame that is used twice would lack rows", "query_once"),
        ({"pushdown": "false"}, "there is no option 'pushdown'", "start and end"),
        ({"columns": "txid,paylod"}, "a stream has no column 'paylod'; did you mean 'payload'?", "payload BINARY"),
        ({"columns": "txid,txid"}, "one of them twice", "txid BIGINT"),
    ],
)
def test_a_wrong_option_is_refused_with_what_to_write(options: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        SourceOptions.parse({**GIVEN, **options})
    assert message in str(refused.value)
    assert hint in refused.value.hint


def test_options_of_the_sink_and_of_spark_itself_are_left_alone() -> None:
    """A view may be there for both directions."""
    parsed(sinkId="a", mode="staged", lockTimeout="1", checkpointLocation="/tmp/x", queryName="q", path="/orders")


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidArgument, match="a streaming query has no end"):
        parsed(is_streaming=True, end="latest")


def test_proxies_are_refused_with_the_way_around_them() -> None:
    with pytest.raises(InvalidUri, match="Spark reads from bookies directly") as refused:
        parsed(uri="quire://proxy:7400/ns")
    assert "direct URI" in refused.value.hint


# --- Columns


def test_a_schema_is_a_choice_of_columns_under_the_names_of_the_user() -> None:
    asked = schema(("TxId", LongType()), ("payload", BinaryType()))
    assert projection(asked) == (Column("txid", "TxId"), Column("payload", "payload"))
    assert projection(schema(("slot", LongType()), nullable=False)) == (Column("slot", "slot", is_nullable=False),)


def test_the_whole_schema_is_its_own_projection() -> None:
    kinds = {"STRING": StringType(), "BIGINT": LongType(), "TIMESTAMP": TimestampType(), "BINARY": BinaryType()}
    whole = [tuple(column.split()) for column in ddl(ALL).split(", ")]
    assert projection(schema(*((name, kinds[kind]) for name, kind in whole))) == tuple(Column(n, n) for n in ALL)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (schema(("value", BinaryType())), "a stream has no column 'value'"),
        (schema(("payload", StringType())), "column 'payload' of a stream is BINARY, and not STRING"),
        (schema(("txid", LongType()), ("TXID", LongType())), "twice"),
        (schema(("time", TimestampType()), nullable=False), "may be NULL"),
        (schema(), "no columns"),
    ],
)
def test_a_wrong_schema_is_refused_with_the_right_one(asked: StructType, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as refused:
        projection(asked)
    assert "txid BIGINT" in refused.value.hint


def test_columns_are_chosen_by_an_option_too() -> None:
    assert chosen(" Txid, payload ,") == ("txid", "payload")
    assert ddl(("txid", "payload")) == "txid BIGINT, payload BINARY"


# --- Offsets


def test_offsets_come_back_as_they_were_and_in_one_order() -> None:
    offsets = {
        "b": Offset(DLSN(Lssn(7), EntryId(120), SlotId(0)), "1f"),
        "a/c": Offset(DLSN(Lssn(1), EntryId(0), SlotId(3))),
    }
    stored = encode_offsets(offsets)
    assert stored["streams"]["b"] == {"segment": 7, "entry": 120, "slot": 0, "identity": "1f"}
    assert list(stored["streams"]) == ["a/c", "b"]
    assert decode_offsets(stored) == offsets


@pytest.mark.parametrize(
    "stored",
    [
        {},
        None,
        {"v": 2, "streams": {}},
        {"v": 1, "streams": []},
        {"v": 1, "streams": {"a": {"segment": 1, "entry": 0, "identity": None}}},
        {"v": 1, "streams": {"a": {"segment": "1", "entry": 0, "slot": 0, "identity": None}}},
        {"v": 1, "streams": {"a": {"segment": 1, "entry": 0, "slot": 0, "identity": 5}}},
    ],
)
def test_a_checkpoint_of_somebody_else_is_refused(stored: object) -> None:
    with pytest.raises(InvalidArgument, match="does not say how far this source was read") as refused:
        decode_offsets(stored)
    assert "checkpoint folder of its own" in refused.value.hint
