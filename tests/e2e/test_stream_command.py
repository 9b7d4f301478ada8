"""`quire stream`, `write`, `read` and `tail` on a log in a folder, as a user types them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.quire_process import Commands, hear, hear_errors, say
from tests.support.waiting import eventually

import quire


@pytest.fixture
def log(tmp_path: Path) -> Commands:
    """Nothing is said about where the log is: it is in the folder."""
    return Commands(tmp_path)


def asked(log: Commands, *words: str) -> Any:
    return json.loads(log.out(*words, "--json"))


def records(log: Commands, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.out("read", *words, "--json").splitlines()]


# --- Writing and reading


def test_lines_become_records_and_come_back(log: Commands) -> None:
    lines = "".join(f"line {number}\n" for number in range(25_000)).encode()
    assert log.err("write", "orders", data=lines).startswith("25000 records, up to 1:")
    assert log.run("read", "orders").stdout == lines
    assert log.out("stream", "list") == "orders\n"
    shown = asked(log, "stream", "show", "orders")
    assert (shown["records"], shown["sealed"], shown["writer"], shown["first_dlsn"]) == (25_000, False, None, "1:0:0")
    assert shown["bytes"] > len(lines)
    again = json.loads(log.out("write", "orders", "--json", data=b"a\nb\n"))
    where = {"stream": "orders", "uri": "file:./quire-data"}
    assert again == {**where, "records": 2, "first_dlsn": "2:0:0", "last_dlsn": "2:0:1"}
    assert log.out("read", "orders", "--from", "2:0:0") == "a\nb\n"
    assert log.err("write", "orders", data=b"") == "0 records were written to orders at file:./quire-data\n"
    assert os.listdir(log.folder) == ["quire-data"]


@pytest.mark.extended
def test_every_byte_comes_through(log: Commands) -> None:
    payloads = [b"", b"\n", b"\xff\x00\xfe"[:1], b"a\r", b"tab\there", bytes(range(1, 256))]
    log.run("write", "s", "-0", data=b"".join(payload + b"\0" for payload in payloads))
    assert log.run("read", "s", "--null").stdout == b"".join(payload + b"\0" for payload in payloads)
    found = records(log, "s")
    assert [set(each) for each in found[:3]] == [{"dlsn", "txid", "payload"}] * 2 + [{"dlsn", "txid", "payload_base64"}]
    assert found[1]["payload"] == "\n"
    assert found[2]["payload_base64"] == "/w=="
    (log.folder / "picture").write_bytes(bytes(range(256)))
    (log.folder / "text").write_bytes(b"one\ntwo\n")
    log.run("write", "files", "--whole", "--file", "picture", "--file", "text")
    assert log.run("read", "files", "-0").stdout == bytes(range(256)) + b"\0one\ntwo\n\0"
    log.run("write", "lines", "--file", "text", "--file", "-", data=b"three")
    assert log.out("read", "lines") == "one\ntwo\nthree\n"


@pytest.mark.extended
def test_a_stream_is_copied_with_its_txids(log: Commands) -> None:
    log.run("write", "a", "--txid", "40", data=b"x\n\xff\nz\n")
    copied = log.run("read", "a", "--json").stdout
    log.run("write", "b", "--jsonl", data=copied)
    assert log.run("read", "b", "--json").stdout == copied
    assert [record["txid"] for record in records(log, "b")] == [40, 41, 42]
    log.run("write", "b", "--jsonl", data=b'{"payload": "now"}\n')
    assert records(log, "b")[-1]["txid"] > 1_700_000_000_000


@pytest.mark.extended
def test_parts_are_read_from_any_position_to_any_other(log: Commands) -> None:
    log.run("write", "s", "--txid", "100", data=b"a\nb\nc\n")
    log.run("write", "s", "--txid", "200", data=b"d\ne\nf\n")
    for options, wanted in (
        (("--from", "earliest", "--to", "99:0:0"), "abcdef"),
        (("--from", "latest"), ""),
        (("--to", "earliest"), ""),
        (("--from", "1:0:1", "--to", "2:0:1"), "bcd"),
        (("--from", ">1:0:2", "--to", ">2:0:1"), "de"),
        (("--from", "tx:102", "--to", "tx:201"), "cd"),
        (("--from", "t:1970-01-01", "--to", "t:1970-01-01T00:00:00.201Z"), "abcd"),
        (("--from", "tx:101", "--limit", "3"), "bcd"),
    ):
        assert log.out("read", "s", *options).replace("\n", "") == wanted, options
    assert log.out("read", "s", "--dlsn", "--from", "2:0:2") == "2:0:2\tf\n"


# --- Streams


def test_the_life_of_a_stream(log: Commands) -> None:
    made = log.run("stream", "create", "s", "t/nested")
    assert (made.stdout, made.stderr) == (
        b"Stream s is created.\nStream t/nested is created.\n",
        b"log: file:./quire-data\n",  # Of all that change something.
    )
    where = {"uri": "file:./quire-data"}
    assert asked(log, "stream", "create", "s", "u") == where | {"created": ["u"], "were_there": ["s"]}
    assert log.out("stream", "list") == "s\nt/nested\nu\n"
    assert asked(log, "stream", "list", "t/") == {"streams": ["t/nested"]}
    assert log.out("stream", "rename", "s", "renamed") == "Stream s is renamed now.\n"
    log.run("write", "renamed", data=b"a\n")
    assert log.out("stream", "seal", "renamed") == log.out("stream", "seal", "renamed") == "Stream renamed is sealed.\n"
    assert re.search("^renamed +sealed +2 ", log.out("stream", "list", "--long"), re.MULTILINE)
    assert asked(log, "stream", "list", "-l", "r")["streams"][0]["sealed"] is True
    assert "has ended" in log.err("write", "renamed", data=b"late\n", code=1)
    assert log.out("tail", "renamed", "--from", "earliest") == "a\n", "it ends with the stream"
    assert asked(log, "stream", "delete", "renamed", "u") == where | {"deleted": ["renamed", "u"]}
    assert log.out("stream", "list") == "t/nested\n"


@pytest.mark.extended
def test_the_old_end_of_a_stream(log: Commands) -> None:
    for txid in ("10", "20", "30"):
        log.run("write", "s", "--txid", txid, data=b"a\nb\n")
    assert log.out("stream", "truncate", "s", "--before", ">2:0:0") == "Stream s begins at 2:0:1 now.\n"
    assert [record["dlsn"] for record in records(log, "s")] == ["2:0:1", "3:0:0", "3:0:1"]
    shown = log.out("stream", "show", "s")
    assert "first    2:0:1, txid" in shown
    assert "partly truncated" in shown
    assert log.out("stream", "purge", "s") == "1 segment of stream s deleted.\n"
    s = {"uri": "file:./quire-data", "stream": "s"}
    assert asked(log, "stream", "purge", "s") == s | {"purged_segments": 0}
    assert asked(log, "stream", "truncate", "s", "--before", "tx:31") == s | {"first_dlsn": "3:0:1"}
    assert asked(log, "stream", "purge", "s", "--before", "tx:25")["purged_segments"] == 1
    assert log.out("read", "s") == "b\n"


@pytest.mark.extended
def test_what_cannot_be_is_one_sentence_and_an_exit_code(log: Commands) -> None:
    """More of this, without a log, is in tests/unit/cli."""
    log.run("write", "s", data=b"a\n")
    for words, said in (
        ("tail nothing", "hint: `quire stream list` lists those there are."),
        ("read s --from 7:0:0", "segments up to 1 were begun"),
        ("read a//b", "hint:"),
        ("stream delete nothing", "there is no stream"),
        ("stream rename s s", "there is a stream 's' already"),
        ("stream truncate s --before 9:0:0", "segments up to 1 were begun"),
        ("write s --file missing", "'missing' cannot be read: No such file"),
        ("write s --ack-quorum 3", "do not fit together"),
        ("write nothing --no-create", "there is no stream 'nothing'"),
    ):
        done = log.run(*words.split(), code=1)
        assert done.stdout == b""
        assert done.stderr.startswith(b"error: "), words
        assert said in done.stderr.decode(), words
    failed = json.loads(log.out("stream", "show", "nothing", "--json", code=1))["error"]
    assert (failed["kind"], failed["facts"]) == ("NoSuchStream", {"stream": "nothing"})
    (line,) = log.out("read", "nothing", "--json", code=1).splitlines()
    assert json.loads(line)["error"]["kind"] == "NoSuchStream"


def test_whoever_only_looks_leaves_nothing_behind(log: Commands) -> None:
    for words in (("stream", "list"), ("read", "s"), ("stream", "delete", "s")):
        text = log.err(*words, code=1)
        assert "there is no log in" in text
        assert "--uri" in text
    assert "there is no log in" in log.err("write", "s", "--no-create", data=b"a\n", code=1)
    assert "makes one" in log.err("stream", "list", "--uri", "file:./other", code=1)
    assert os.listdir(log.folder) == []


def test_of_several_streams_an_error_says_which_were_done(log: Commands) -> None:
    log.run("stream", "create", "a", "b", "d")
    text = log.err("stream", "delete", "a", "b", "c", "d", code=1)
    assert text.splitlines()[:2] == ["error: there is no stream 'c'", "note: a, b: deleted before that."]
    failed = json.loads(log.out("stream", "seal", "d", "c", "--json", code=1))["error"]
    assert failed["notes"] == ["d: sealed before that."]
    assert log.out("stream", "list") == "d\n"


# --- When something goes wrong half way


def test_an_error_half_way_says_what_is_certainly_written(log: Commands) -> None:
    lines = [json.dumps({"payload": f"{number}", "txid": number}) for number in range(1, 3001)]
    lines[2500] = lines[2500].replace("payload", "pyload")
    text = log.err("write", "s", "--jsonl", data="\n".join(lines).encode(), code=1)
    assert "error: line 2501 of standard input is no record: 'pyload' is nothing that a record has" in text
    assert "note: 2500 records, up to 1:" in text
    assert log.out("read", "s").split() == [str(number) for number in range(1, 2501)]
    failed = json.loads(log.out("write", "s", "--jsonl", "--json", data=lines[0].encode(), code=1))["error"]
    assert failed["kind"] == "TxidOutOfOrder"
    assert (failed["facts"]["written"], failed["facts"]["last_dlsn"]) == (0, None)
    log.run("write", "s", "--file", "quire-data/metadata.db", "--whole", "--txid", "9" * 19, code=1)


def test_of_a_folder_that_is_in_use_the_user_is_told(log: Commands) -> None:
    log.run("stream", "create", "s")
    with quire.sync.connect(f"file:{log.folder}/quire-data"):
        text = log.err("stream", "list", code=1)
    assert f"process {os.getpid()}" in text
    assert "hint: " in text


ACKNOWLEDGING = """
import asyncio, quire, sys
async def main():
    async with quire.connect(sys.argv[1]) as client, client.open_writer("s") as writer:
        for number in range(10**9):
            await writer.append(b"%d" % number)
            print(number, flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("count", [1, 2, 30])
def test_what_was_acknowledged_is_read_after_a_kill(log: Commands, count: int) -> None:
    """Method: kill the program at the very moment in which it says so, when readers cannot know of that record yet."""
    program = subprocess.Popen(  # Unbuffered: `communicate` does not see what a buffer has read ahead.
        [sys.executable, "-c", ACKNOWLEDGING, "file:./quire-data"], cwd=log.folder, stdout=subprocess.PIPE, bufsize=0
    )
    try:
        assert program.stdout is not None
        said = [int(program.stdout.readline()) for _ in range(count)]
    finally:
        program.kill()
        said += [int(line) for line in program.communicate(timeout=60)[0].splitlines()]
    found = [int(line) for line in log.out("read", "s").split()]
    assert found[: len(said)] == said
    assert len(found) - len(said) <= 1, "the next one may be there, too"
    assert [int(line) for line in log.out("read", "s").split()] == found


# --- Pipes and terminals


async def test_whoever_has_enough_is_no_error(log: Commands) -> None:
    log.run("write", "s", data=b"line\n" * 200_000)
    async with log.start("read", "s") as reading:
        assert await hear(reading, 2) == [b"line\n"] * 2
        assert reading.stdout is not None
        reading.stdout._transport.close()  # type: ignore[attr-defined]
        assert await reading.wait() == 0
        assert await hear_errors(reading) == ""


def test_a_full_disk_behind_the_output_is_a_sentence(log: Commands) -> None:
    log.run("write", "s", data=b"line\n")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "quire", "read", "s"],
            cwd=log.folder,
            env=log.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr.startswith(b"error: standard output cannot be written: No space left on device\n")
    assert b"Traceback" not in done.stderr


async def test_ctrl_c_ends_the_input_and_what_was_read_is_written(log: Commands) -> None:
    async with log.start("write", "s", "--json") as writing:
        await say(writing, b"one\ntwo\nthr")

        async def reads() -> bool:
            """Whether its pipe is empty: then it has taken what we said."""
            return writing.returncode is None and _bytes_in(writing.pid) == 0

        await eventually(lambda: _is_handled(writing.pid), within_s=60, what="it waits for its input")
        await eventually(reads, within_s=30, what="it has read all")
        writing.send_signal(signal.SIGINT)
        assert writing.stdout is not None
        assert json.loads(await writing.stdout.read())["records"] == 3
        assert await writing.wait() == 0
    assert log.out("read", "s") == "one\ntwo\nthr\n"


def _bytes_in(pid: int) -> int:
    """How much is in the pipe that is a process's standard input."""
    import fcntl
    import struct
    import termios

    pipe = os.open(f"/proc/{pid}/fd/0", os.O_RDONLY | os.O_NONBLOCK)
    try:
        (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
        return int(count)
    finally:
        os.close(pipe)


async def _is_handled(pid: int) -> bool:
    """Whether a process has a handler of its own for Ctrl-C by now."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)


async def test_lines_that_are_typed_are_records(log: Commands) -> None:
    with log.type("write", "s") as terminal:
        await terminal.see("Ctrl-D ends the input")
        terminal.type("one\ntwo\n")
        terminal.type("thr\x7free\n\x04")
        assert await terminal.end() == 0
        assert "3 records, up to 1:" in terminal.seen
    assert log.out("read", "s") == "one\ntwo\nthree\n"


async def test_a_person_is_asked_before_a_stream_is_deleted(log: Commands) -> None:
    log.run("stream", "create", "a", "b")
    with log.type("stream", "delete", "a", "b") as terminal:
        await terminal.see("Delete 2 streams (a, b) with all records at file:./quire-data? [y/N]")
        terminal.type("n\n")
        assert await terminal.end() == 1
    assert log.out("stream", "list") == "a\nb\n"
    with log.type("stream", "delete", "a") as terminal:
        await terminal.see("Delete stream a with all records at file:./quire-data? [y/N]")
        terminal.type("y\n")
        assert await terminal.end() == 0
        assert "is deleted" in terminal.seen
    with log.type("stream", "delete", "b", "--yes") as terminal:
        assert await terminal.end() == 0
        assert "[y/N]" not in terminal.seen
    assert log.out("stream", "list") == ""


@pytest.mark.extended
async def test_colours_and_progress_are_for_terminals(log: Commands) -> None:
    log.run("write", "s", data=b"a\n")
    assert "\x1b" not in log.out("stream", "show", "s") + log.err("read", "nothing", code=1)
    with log.type("stream", "show", "s") as terminal:
        assert await terminal.end() == 0
        assert "\x1b[1m" in terminal.seen
    with log.type("read", "s") as terminal:
        assert await terminal.end() == 0
        assert terminal.seen == "a\n", "records are bytes, and nothing comes between them"
    (log.folder / "lines").write_bytes(b"x\n" * 100_000)
    with log.type("write", "s", "--file", "lines") as terminal:
        assert await terminal.end() == 0
        assert "records written" in terminal.seen
        assert "100000 records" in terminal.seen


# --- Measuring


def test_a_log_is_measured_and_left_as_it_was(log: Commands) -> None:
    log.run("write", "orders", data=b"kept\n")
    found = asked(log, "perf", "--records", "1200", "--seconds", "0.3")
    assert [(row["operation"], row["records"]) for row in found["throughput"]] == [("write", 1200), ("read", 1200)]
    for row in found["throughput"]:
        assert row["records_per_s"] > 0
    assert [row["until"] for row in found["delays"]] == ["acknowledged", "read at the tail"]
    for row in found["delays"]:
        assert 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]
    text = log.out("perf", "--records", "10", "--seconds", "0.1")
    assert "records/s" in text
    assert "read at the tail" in text
    assert log.out("stream", "list") == "orders\n"
