"""The examples, as a newcomer runs them: as programs, in a folder and on a cluster, once and again."""

import ast
import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.tiers import one_in

import quire
from quire.testing import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = 39
DEADLINE_S = 100.0

BOTH = pytest.mark.parametrize("uri", one_in(2, ["file", "cluster"]), indirect=True)


@pytest.fixture
def uri(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "file":
        return f"file:{tmp_path}/data"
    cluster: LocalCluster = request.getfixturevalue("quire_cluster")
    return cluster.uri


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Where the examples run."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def run(here: Path, example: str, *args: str, code: int = 0, **environment: str) -> list[str]:
    """What an example prints. Its exit code has to be `code`."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{example}.py"), *args],
        cwd=here,
        env=environ(**environment),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")
    return done.stdout.splitlines()


@contextmanager
def running(here: Path, example: str, *args: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(EXAMPLES / f"{example}.py"), *args]
    with subprocess.Popen(command, cwd=here, env=environ(), stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def environ(**more: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "QUIRE_URI"} | more


def stored(uri: str, stream: str) -> list[bytes]:
    """All that is in a stream. It ends with this."""
    with quire.sync.connect(uri) as client:
        client.seal_stream(stream)
        with client.open_reader(stream) as reader:
            return [record.payload for record in reader]


# --- All of them


def test_examples_are_short_and_say_what_they_are_about() -> None:
    for path in EXAMPLES.glob("*.py"):
        text = path.read_text()
        assert len(text.splitlines()) <= LINES_MAX, path.name
        assert ast.get_docstring(ast.parse(text)), path.name


def test_every_example_is_in_the_list() -> None:
    listed = (EXAMPLES / "README.md").read_text()
    assert [path.name for path in EXAMPLES.glob("*.py") if f"| [{path.name}]({path.name}) |" not in listed] == []


def test_without_a_word_the_log_is_in_a_folder_here(here: Path) -> None:
    assert len(run(here, "first_log")) == 3
    assert [path.name for path in here.iterdir()] == ["quire-data"]
    assert len(run(here, "first_log", QUIRE_URI="file:./elsewhere")) == 3
    assert len(run(here, "first_log", f"file:{here}/quire-data", QUIRE_URI="file:./elsewhere")) == 6


# --- One by one


@BOTH
def test_the_first_log(here: Path, uri: str) -> None:
    for times in (1, 2):
        printed = run(here, "first_log", uri)
        assert [line.split()[1] for line in printed] == ["hello", "log", "world"] * times
    places = [quire.DLSN.parse(line.split()[0]) for line in printed]
    assert places == sorted(set(places))
    assert stored(uri, "first-log") == [b"hello", b"log", b"world"] * 2


@BOTH
def test_fan_in(here: Path, uri: str) -> None:
    for _ in range(2):
        first, second = run(here, "fan_in", uri)
        assert first.startswith("100 producers appended 2000 records, which left in ")
        assert int(first.split()[-2]) < 2000
        assert second == "the records of 100 producers came in their order, none missing, none twice"
    assert Counter(stored(uri, "fan-in")) == {b"%d %d" % (n, m): 2 for n in range(100) for m in range(20)}


@BOTH
def test_a_tailing_reader_sees_each_record_once(here: Path, uri: str) -> None:
    for first in (1, 11):
        printed = run(here, "tail_with_position", uri)
        assert [line.split(":")[0] for line in printed] == [f"payment {n}" for n in range(first, first + 10)]
    assert totals(here) == expected_totals(uri)


@BOTH
def test_a_tailing_reader_that_is_killed_sees_each_record_once(here: Path, uri: str) -> None:
    """Method: it is killed as soon as it has said that it counted one, four times, while ten wait to be counted."""
    for _ in range(4):
        with running(here, "tail_with_position", uri) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("payment ")
            process.kill()
    assert run(here, "tail_with_position", uri)[-1].startswith("payment 50: ")
    assert totals(here) == expected_totals(uri)


def totals(here: Path) -> tuple[int, int]:
    database = sqlite3.connect(here / "totals.db")
    try:
        (row,) = database.execute("SELECT records, amount FROM totals").fetchall()
    finally:
        database.close()
    records, amount = row
    return records, amount


def expected_totals(uri: str) -> tuple[int, int]:
    amounts = [int(payload) for payload in stored(uri, "payments")]
    return len(amounts), sum(amounts)


@BOTH
def test_replicas_reach_the_same_state(here: Path, uri: str) -> None:
    for _ in range(2):
        printed = run(here, "replicated_state_machine", uri)
        assert [line.partition(": ")[0] for line in printed] == ["replica a", "replica b", "replica c"]
        for line in printed:
            assert json.loads(line.partition(": ")[2]) == {f"key {n}": f"value {n + 96}" for n in range(4)}
    changes = [json.loads(payload) for payload in stored(uri, "key-values")]
    assert changes == [[f"key {n % 4}", f"value {n}"] for n in range(100)] * 2


@BOTH
def test_a_database_finds_in_its_log_what_a_crash_kept_from_its_file(here: Path, uri: str) -> None:
    (rows,) = run(here, "write_ahead_log", uri)
    assert rows.startswith("1 rows in database.json")
    lost = ["row 2", "row 3"] if uri.startswith("file:") else ["row 2"]  # On a cluster the lock of the dead lasts 10 s.
    for crashes in range(len(lost)):
        found = run(here, "write_ahead_log", uri, "crash", code=1)
        assert [line.split("'")[1] for line in found] == lost[:crashes]
        assert list(json.loads((here / "database.json").read_text())[0]) == ["row 1"]
    *found, rows = run(here, "write_ahead_log", uri)
    assert [line.split("'")[1] for line in found] == lost
    assert rows.startswith(f"{len(lost) + 2} rows in database.json")
    (rows,) = run(here, "write_ahead_log", uri)
    assert rows.startswith(f"{len(lost) + 3} rows in database.json")
    assert 0 < len(stored(uri, "wal")) < len(lost) + 3  # What both files have was truncated.


@BOTH
def test_consumers_share_the_work(here: Path, uri: str) -> None:
    jobs = [f"jobs-{stream}.{number}" for stream in (1, 2, 3) for number in range(6)]
    for _ in range(2):
        printed = run(here, "competing_consumers", uri)
        assert sorted(line.split(" does ")[1] for line in printed) == jobs
        assert {line.split(" does ")[0] for line in printed} <= {"Ann", "Bob"}  # Who does what is up to chance.
    assert stored(uri, "jobs-1") == [f"jobs-1.{number}".encode() for number in range(6)] * 2


def test_consumers_of_several_processes_share_the_work(here: Path, quire_cluster: LocalCluster) -> None:
    with running(here, "competing_consumers", quire_cluster.uri) as process:
        ours = run(here, "competing_consumers", quire_cluster.uri)
        theirs = process.communicate(timeout=DEADLINE_S)[0].splitlines()
        assert process.returncode == 0
    jobs = [f"jobs-{stream}.{number}" for stream in (1, 2, 3) for number in range(6)]
    assert Counter(line.split(" does ")[1] for line in ours + theirs) == dict.fromkeys(
        jobs, 2
    )  # Once for each process.


def test_a_consumer_that_is_killed_leaves_its_work_to_others(here: Path, quire_cluster: LocalCluster) -> None:
    with running(here, "competing_consumers", quire_cluster.uri) as process:
        assert process.stdout is not None
        before = [process.stdout.readline().strip()]
        process.kill()
        before += process.stdout.read().splitlines()
    after = run(here, "competing_consumers", quire_cluster.uri)
    done = Counter(line.split(" does ")[1] for line in before + after)
    assert sorted(done) == [f"jobs-{stream}.{number}" for stream in (1, 2, 3) for number in range(6)]
    assert min(done.values()) == 2  # Both processes asked for each of them.


def test_one_program_moves_by_its_uri(here: Path, quire_cluster: LocalCluster) -> None:
    for where, copies in (("file:./data", "1 bookie"), (quire_cluster.uri, "3 bookies")):
        for number in (1, 2, 3, 4):
            first, *guests = run(here, "one_uri", QUIRE_URI=where)
            assert first.startswith(f"guest {number} is at ")
            assert first.endswith(f", on {copies}")
            assert guests == [f"  guest {n}" for n in (number - 2, number - 1, number) if n > 0]
