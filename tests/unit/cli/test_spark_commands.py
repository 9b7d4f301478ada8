"""What commands on Spark understand of what people write."""

from dataclasses import dataclass
from io import StringIO
from typing import Any

import pytest
from benchmarks.spark.command import numbers
from rich.console import Console

from quire.cli import output, spark_options
from quire.cli.archive import policy
from quire.cli.spark_options import parsed_settings
from quire.cli.sql_output import statements
from quire.errors import InvalidArgument
from quire.spark.replay import _Progress
from quire.stream.cold_moves import DropPolicy


def test_statements_end_with_semicolons_at_the_end_of_lines() -> None:
    lines = ["SELECT 1;\n", "SELECT ';'\n", "  AS semicolon;\n", "\n", "SHOW TABLES"]
    assert list(statements(lines)) == ["SELECT 1", "SELECT ';'\n  AS semicolon", "SHOW TABLES"]
    assert list(statements([])) == []


@pytest.mark.parametrize(
    ("everything", "after", "keep", "meant"),
    [
        (False, None, None, None),
        (True, None, None, DropPolicy()),
        (False, "36h", None, DropPolicy(older_than_s=129_600)),
        (False, "7d", "20g", DropPolicy(older_than_s=604_800, keep_bytes=20 << 30)),
        (True, None, "500MB", DropPolicy(keep_bytes=500 << 20)),
    ],
)
def test_what_is_dropped(everything: bool, after: str | None, keep: str | None, meant: DropPolicy | None) -> None:
    assert policy(everything, after, keep) == meant


@pytest.mark.parametrize(("after", "keep"), [("soon", None), ("7", None), (None, "many"), (None, "-1")])
def test_what_is_no_age_or_size_is_refused(after: str | None, keep: str | None) -> None:
    with pytest.raises(InvalidArgument) as caught:
        policy(False, after, keep)
    assert caught.value.hint


def test_settings_of_spark_have_a_name_and_a_value() -> None:
    assert parsed_settings(["spark.executor.memory=4g", "a=b=c"]) == {"spark.executor.memory": "4g", "a": "b=c"}
    for wrong in ("spark.executor.memory", "=4g"):
        with pytest.raises(InvalidArgument):
            parsed_settings([wrong])


# --- What is shown while a job runs


def terminal(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = True) -> StringIO:
    """What commands write on standard error."""
    written = StringIO()
    console = Console(file=written, force_terminal=is_terminal, width=100)
    for module in (spark_options, output):
        monkeypatch.setattr(module, "err", lambda: console)
    return written


def test_a_bar_shows_how_many_tasks_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = terminal(monkeypatch)
    with spark_options.bar("archiving segments", quiet=False) as on_progress:
        on_progress(0, 3)
        on_progress(2, 3)
        print("a result")
    assert "archiving segments" in written.getvalue()
    assert "2/3" in written.getvalue()
    assert capsys.readouterr().out == "a result\n", "also if standard output is a file, and no terminal"
    assert "a result" not in written.getvalue()


def test_a_counter_shows_how_many_there_were(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written = terminal(monkeypatch)
    with output.counting("records", quiet=False) as counter:
        counter.step(40)
        counter.step(2)
        print("a record")
    assert counter.count == 42
    assert "records 42" in written.getvalue()
    assert capsys.readouterr().out == "a record\n"


@pytest.mark.parametrize(("quiet", "is_terminal"), [(True, True), (False, False)])
def test_nothing_is_shown_to_programs(monkeypatch: pytest.MonkeyPatch, quiet: bool, is_terminal: bool) -> None:
    written = terminal(monkeypatch, is_terminal=is_terminal)
    with spark_options.bar("archiving", quiet=quiet) as on_progress, output.counting("records", quiet=quiet) as counter:
        on_progress(1, 2)
        counter.step(7)
    assert (written.getvalue(), counter.count) == ("", 7)


def test_a_query_tells_of_each_batch_once() -> None:
    """What Spark has of a query's progress is a list that grows, with batches that read nothing among others."""

    @dataclass
    class Query:
        recentProgress: list[dict[str, Any]]  # noqa: N815 - Spark's name

    def batch(number: int, *rows: int) -> dict[str, Any]:
        return {"batchId": number, "sources": [{"numInputRows": each} for each in rows]}

    told: list[int] = []
    seen = _Progress(told.append)
    seen.look(Query([]))
    seen.look(Query([batch(4, 10, 5), batch(5, 0, 0)]))
    seen.look(Query([batch(4, 10, 5), batch(5, 0, 0), batch(6, 0, 2)]))
    assert (told, seen.records, seen.batches, seen.first_batch) == ([15, 2], 17, 2, 4)


def test_sizes_of_a_benchmark_are_numbers_above_zero() -> None:
    assert numbers("1000,20") == [1000, 20]
    for wrong in ("", "0", "a few", "1,-1"):
        with pytest.raises(InvalidArgument):
            numbers(wrong)
