"""Which streams a statement is about, and how names are written."""

from quire.spark.sql import mentioned, quoted

STREAMS = ["orders", "eu/orders", "payments", "odd`name"]


def test_streams_are_found_by_name_whatever_the_case() -> None:
    assert mentioned("SELECT * FROM Payments", STREAMS) == ["payments"]
    assert mentioned("SELECT * FROM `eu/orders`", STREAMS) == ["orders", "eu/orders"]
    assert mentioned("SELECT 1", STREAMS) == []


def test_a_name_with_a_backtick_is_found_as_sql_writes_it() -> None:
    assert mentioned(f"SELECT * FROM {quoted('odd`name')}", STREAMS) == ["odd`name"]


def test_a_list_of_tables_is_about_all() -> None:
    assert mentioned("show  TABLES", STREAMS) == STREAMS
