"""Events: silent in a library, one line each where a command asks for them."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from quire.telemetry.events import Seldom, configure, logger


@pytest.fixture(autouse=True)
def same_logging_afterwards() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("quire")
    handlers, level = list(root.handlers), ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_event_is_a_record_of_the_standard_logging(caplog: pytest.LogCaptureFixture) -> None:
    """A program that knows nothing of Quire can read it, filter it by level, and find where it came from."""
    caplog.set_level("INFO", "quire.bookie")
    log = logger("bookie", bookie_id="b-1")
    log.warning("disk.almost_full", free_bytes=12, folder="a folder")
    log.debug("too.small")
    log.bind(ledger_id=7).info("ledger.deleted")
    warning, info = caplog.records
    assert warning.getMessage() == "disk.almost_full bookie_id=b-1 free_bytes=12 folder='a folder'"
    assert (warning.name, warning.levelno, warning.filename) == ("quire.bookie", logging.WARNING, "test_events.py")
    assert vars(warning)["event"] == "disk.almost_full"
    assert vars(warning)["facts"] == {"bookie_id": "b-1", "free_bytes": 12, "folder": "a folder"}
    assert info.getMessage() == "ledger.deleted bookie_id=b-1 ledger_id=7"


def test_values_cannot_look_like_other_events(caplog: pytest.LogCaptureFixture) -> None:
    logger("bookie").error("client.left", name="x\ndisk.failed \x1b[31m", other="50% of=it", empty="")
    assert caplog.messages == [r"client.left name='x\ndisk.failed \x1b[31m' other='50% of=it' empty=''"]


def test_an_event_can_carry_an_error(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("no")
    logger("bookie").error("disk.failed", exc_info=error)
    try:
        raise error
    except ValueError:
        logger("bookie").exception("disk.failed")
    assert [record.exc_info and record.exc_info[1] for record in caplog.records] == [error, error]


def test_a_library_writes_nothing_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody configured logging, Python writes the warnings of others to stderr."""
    logging.getLogger().handlers.clear()  # Those of pytest.
    logging.getLogger("other").error("seen")
    logger("bookie").error("disk.failed")
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "seen\n")


def test_commands_write_json_lines_where_no_terminal_is() -> None:
    stream = io.StringIO()
    configure(stream=stream)
    logger("bookie").warning("disk.almost_full", free_bytes=12, level="low", path=b"\xff", text="ü\n")
    logging.getLogger("kazoo").warning("lost %s", "connection")
    logging.getLogger("kazoo").info("not worth a line")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("timestamp").endswith("+00:00")
    assert first == {
        "level": "warning",
        "logger": "quire.bookie",
        "event": "disk.almost_full",
        "free_bytes": 12,
        "level_": "low",
        "path": "b'\\xff'",
        "text": "ü\n",
    }
    assert (second["logger"], second["event"]) == ("kazoo", "lost connection")


def test_a_traceback_is_part_of_its_line() -> None:
    stream = io.StringIO()
    configure(json=True, stream=stream)
    try:
        raise ValueError("no")
    except ValueError:
        logger("bookie").exception("disk.failed")
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert line["exception"].startswith("Traceback")
    assert line["exception"].endswith("ValueError: no")


def test_a_terminal_gets_coloured_lines_for_people() -> None:
    stream = Terminal()
    configure(stream=stream)
    logger("bookie").warning("disk.almost_full", free_bytes=12, name="x\n\x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert "\x1b[" in line
    assert "disk.almost_full" in line
    assert "\x1b[2J" not in line
    configure(json=False, stream=(plain := io.StringIO()))
    logger("bookie").warning("disk.almost_full", free_bytes=12)
    assert plain.getvalue().count("\x1b") == 0
    assert "disk.almost_full" in plain.getvalue()
    assert "free_bytes=12" in plain.getvalue()


def test_the_last_configuration_counts() -> None:
    first, last = io.StringIO(), io.StringIO()
    configure(stream=first)
    configure(stream=last, level="ERROR")
    logger("bookie").warning("disk.almost_full")
    logger("bookie").error("disk.failed")
    assert first.getvalue() == ""
    assert [json.loads(line)["event"] for line in last.getvalue().splitlines()] == ["disk.failed"]


def test_what_strangers_cause_is_logged_once_and_then_with_how_often_it_came(caplog: pytest.LogCaptureFixture) -> None:
    seldom = Seldom(logger("rpc").warning, "connection.refused")
    for number in range(1000):
        seldom(number / 1000, peer=number)
    seldom(10.0, peer="late")
    seldom(10.1, peer="later")
    assert [record.getMessage() for record in caplog.records] == [
        "connection.refused times=1 peer=0",
        "connection.refused times=1000 peer=late",
    ]
