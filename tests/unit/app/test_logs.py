"""Logs that others write: read as they grow, and begun anew before they are too large."""

import json
import os
from pathlib import Path

from quire.app.logs import LogTail, append_event, bound_log, bound_logs, open_log


def append(path: Path, text: str) -> None:
    with path.open("a") as log:
        log.write(text)


def test_a_tail_has_whole_lines_that_come_later(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "before\n")
    tail = LogTail(log)
    assert tail.lines() == []
    append(log, "one\ntw")
    assert tail.lines() == ["one"]
    append(log, "o\n\n")
    assert tail.lines() == ["two", ""]
    assert tail.lines() == []


def test_a_log_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    tail = LogTail(tmp_path / "log")
    assert tail.lines() == []
    append(tmp_path / "log", "one\n")
    assert tail.lines() == ["one"]


def test_a_log_that_was_begun_anew_is_read_from_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    append(log, "long enough\nunfinished")
    tail = LogTail(log)
    os.truncate(log, 0)
    append(log, "new\n")
    assert tail.lines() == ["new"]


def test_bytes_that_are_no_text_and_lines_that_never_end_do_no_harm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    tail = LogTail(log)
    log.write_bytes(b"\xff\xfe\n" + b"x" * (3 << 20))
    assert tail.lines() == ["��"]
    for _ in range(5):
        assert tail.lines() == []
    append(log, "\nafter\n")
    assert tail.lines()[-1] == "after"


def test_a_large_log_is_begun_anew_under_its_writer(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "bookie-1.log"
    descriptor = open_log(log)
    try:
        os.write(descriptor, b"a" * 100)
        assert not bound_log(log, bytes_max=100)
        os.write(descriptor, b"b")
        assert bound_log(log, bytes_max=100)
        os.write(descriptor, b"after\n")
    finally:
        os.close(descriptor)
    assert log.read_text() == "after\n"
    assert log.with_name("bookie-1.log.1").read_text() == "a" * 100 + "b"


def test_only_one_older_log_is_kept(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for text in ("one", "two", "three"):
        append(log, text)
        bound_log(log, bytes_max=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert (tmp_path / "log.1").read_text() == "three"


def test_all_logs_of_a_folder_are_bound(tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_bytes(b"x" * (9 << 20))
    bound_logs(tmp_path)
    assert [path.stat().st_size for path in sorted(tmp_path.glob("*.log"))] == [0, 0]


def test_events_are_lines_and_a_log_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    append_event(tmp_path / "up.log", {"event": "started"})
    append_event(tmp_path / "up.log", {"event": "stopped"})
    lines = (tmp_path / "up.log").read_text().splitlines()
    assert [json.loads(line)["event"] for line in lines] == ["started", "stopped"]
    append_event(tmp_path / "none" / "up.log", {"event": "started"})
