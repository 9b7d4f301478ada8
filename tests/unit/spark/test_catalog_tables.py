"""A table's options go along with its columns, and come back where it is read."""

import pytest
from pyspark.sql.types import BinaryType, StructType

from quire.errors import InvalidArgument
from quire.spark.catalog_tables import is_table, read_options, table_schema
from quire.spark.option_names import log_uri
from quire.spark.options import SourceOptions
from quire.spark.schema import ALL, projection
from quire.spark.sink_options import sink_options

URI = "distributedlog://zk1:2181/ns"
PAYLOAD = StructType().add("payload", BinaryType())


def table(**options: str) -> dict[str, str]:
    """The properties of a table that is being made, as Spark 4.3 gives them."""
    given = {name.lower(): value for name, value in options.items()}
    return {"provider": "quire", "owner": "me", **given, **{f"option.{name}": value for name, value in given.items()}}


def stored(schema: StructType) -> StructType:
    return StructType.fromJson(schema.jsonValue())


def test_options_of_a_table_reach_those_who_read_it() -> None:
    schema = stored(table_schema(table(uri=URI, stream="orders", failOnDataLoss="false")))
    assert [column.name for column in projection(schema)] == [*ALL]
    assert read_options({}, schema) == {"uri": URI, "stream": "orders", "failondataloss": "false"}
    assert read_options({"Start": "latest"}, schema)["start"] == "latest"
    few = stored(table_schema(table(uri=URI, stream="orders", columns="txid,payload")))
    assert [column.name for column in projection(few)] == ["txid", "payload"]


def test_who_says_which_stream_is_not_given_that_of_a_table() -> None:
    """The columns of a table may be given to another read as its schema."""
    schema = stored(table_schema(table(uri=URI, stream="orders", start="latest")))
    assert read_options({"uri": URI, "stream": "paid"}, schema) == {"uri": URI, "stream": "paid"}
    assert read_options({"path": "paid"}, schema) == {"path": "paid"}
    assert read_options({}, StructType([])) == {}


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "option uri is missing"),
        ({"uri": URI}, "option stream is missing"),
        ({"uri": URI, "steam": "s"}, "'steam'"),
    ],
)
def test_a_table_that_could_not_be_read_is_not_made(options: dict[str, str], problem: str) -> None:
    assert is_table(table(**options))
    with pytest.raises(InvalidArgument, match=problem):
        table_schema(table(**options))


@pytest.mark.parametrize(("writes", "way"), [(False, "without a list of columns"), (True, "INSERT INTO … WITH (uri")])
def test_who_is_not_given_the_options_of_a_table_is_told_of_another_way(
    monkeypatch: pytest.MonkeyPatch, writes: bool, way: str
) -> None:
    with pytest.raises(InvalidArgument, match="the option uri is missing") as refused:
        log_uri({}, writes=writes)
    assert way in refused.value.hint
    with pytest.raises(InvalidArgument) as refused:
        log_uri({"stream": "orders"}, writes=writes)
    assert "SQL" not in refused.value.hint
    assert "INSERT" not in refused.value.hint
    monkeypatch.setenv("QUIRE_URI", URI)
    with pytest.raises(InvalidArgument, match="the option stream is missing") as refused:
        sink_options({}, PAYLOAD, overwrite=False) if writes else SourceOptions.parse({})
    assert way in refused.value.hint
