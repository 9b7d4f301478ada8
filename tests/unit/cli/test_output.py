"""What commands say when something is wrong, and when nobody listens."""

import json
from typing import Any

import pytest
import typer

from quire.cli.output import checked, report
from quire.errors import FolderInUse, InvalidArgument, QuireError
from quire.types import DLSN, EntryId, Lssn, SlotId


def raised(error: QuireError) -> QuireError:
    error.add_note("bookie-1, in this process, has failed: [red]its disk is gone[/]")
    error.add_note("3 records were written before that.")
    return error


def test_an_error_is_a_sentence_then_what_else_is_known_then_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    report(raised(FolderInUse("[bold] is in use", hint="End [it].")), as_json=False)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines() == [
        "error: [bold] is in use",
        "note: bookie-1, in this process, has failed: [red]its disk is gone[/]",
        "note: 3 records were written before that.",
        "hint: End [it].",
    ]


def test_for_programs_it_is_json_with_notes_and_facts(capsys: pytest.CaptureFixture[str]) -> None:
    at = DLSN(Lssn(3), EntryId(17), SlotId(0))
    report(raised(InvalidArgument("no", hint="yes", at=at, count=3, name=None, kind={1})), as_json=True)
    said: dict[str, Any] = json.loads(capsys.readouterr().out)["error"]
    assert said == {
        "kind": "InvalidArgument",
        "message": "no",
        "hint": "yes",
        "notes": [
            "bookie-1, in this process, has failed: [red]its disk is gone[/]",
            "3 records were written before that.",
        ],
        "facts": {"at": "3:17:0", "count": 3, "name": None, "kind": "{1}"},
        "retryable": False,
        "outcome": "not_applied",
    }


def test_where_results_are_lines_an_error_is_one_too(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise InvalidArgument("no")

    with pytest.raises(typer.Exit) as caught:
        checked(fail, as_json=True, in_lines=True)
    assert caught.value.exit_code == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["error"]["message"] == "no"


def test_bugs_are_not_dressed_up(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        checked(lambda: 1 // 0, as_json=False)
    assert capsys.readouterr() == ("", "")
