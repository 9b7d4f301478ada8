"""A failed query is told in a sentence, and an error of ours as what it was."""

import pytest

from quire.errors import InvalidArgument, NoSuchStream, QueryFailed
from quire.spark.failures import told_by

TRACEBACK = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan Python data source read: Traceback (most recent call last):
  File "planning.py", line 1, in partitions
quire.errors.refused.NoSuchStream: there is no stream 'orders'
Create it, or look for its name with `quire stream list`.
 SQLSTATE: 38000
"""


class AnalysisException(Exception):
    """As Spark calls it."""


class JavaError:
    """An error in the JVM, and what caused it."""

    def __init__(self, message: str | None, cause: "JavaError | None" = None) -> None:
        self._message, self._cause = message, cause

    def getMessage(self) -> str | None:  # noqa: N802 - Java's names
        return self._message

    def getCause(self) -> "JavaError | None":  # noqa: N802
        return self._cause

    def toString(self) -> str:  # noqa: N802
        return "java.lang.Error"


def test_an_error_of_ours_is_found_in_a_traceback_with_its_hint() -> None:
    told = told_by(Exception(TRACEBACK))
    assert type(told) is NoSuchStream
    assert str(told) == "there is no stream 'orders'"
    assert told.hint == "Create it, or look for its name with `quire stream list`."


def test_a_mistake_in_a_statement_is_the_callers() -> None:
    told = told_by(
        AnalysisException("[PARSE_SYNTAX_ERROR] Syntax error at 'SELEC'. SQLSTATE: 42601 (line 1)\n== SQL ==")
    )
    assert type(told) is InvalidArgument
    assert str(told) == "Syntax error at 'SELEC'."


def test_a_missing_table_is_told_with_how_to_find_it() -> None:
    told = told_by(AnalysisException("[TABLE_OR_VIEW_NOT_FOUND] The table or view `x` cannot be found."))
    assert "SHOW TABLES" in told.hint


def test_of_several_causes_the_innermost_counts() -> None:
    error = Exception("Job aborted")
    error.java_exception = JavaError("Job aborted", JavaError("in a stage", JavaError("[X] disk full")))  # type: ignore[attr-defined]
    told = told_by(error)
    assert (type(told), str(told)) == (QueryFailed, "disk full")


def test_a_long_story_is_cut() -> None:
    assert len(str(told_by(Exception("word " * 1000)))) < 600


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_an_error_without_words_is_still_one(text: str) -> None:
    assert isinstance(told_by(Exception(text)), QueryFailed)
