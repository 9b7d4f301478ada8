"""Records out of files and pipes: what is read before a mistake, or before Ctrl-C, is not lost."""

import asyncio
import json
import os
import signal
from base64 import b64encode
from contextlib import aclosing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.cli.record_input import RecordInput
from quire.cli.record_output import RecordOutput
from quire.cli.stdin import ctrl_c
from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, TXID_MAX
from quire.codec.stream.records import LogRecord
from quire.errors import InvalidArgument, QuireError, RecordTooLarge, TxidOutOfOrder
from quire.types import DLSN, EntryId, Lssn, SlotId
from tests.support.waiting import eventually

Read = tuple[list[bytes], list[int | None], QuireError | None]


async def everything(records: RecordInput) -> Read:
    """Payloads, txids, and the error that came in the end."""
    payloads: list[bytes] = []
    txids: list[int | None] = []
    try:
        with ctrl_c() as interrupted:
            async with aclosing(records.batches(interrupted)) as batches:
                async for batch in batches:
                    assert batch.txids is None or len(batch.txids) == len(batch.payloads) > 0
                    payloads += batch.payloads
                    txids += batch.txids or [None] * len(batch.payloads)
    except QuireError as error:
        return payloads, txids, error
    return payloads, txids, None


def file_of(folder: Path, data: bytes, name: str = "input") -> str:
    (folder / name).write_bytes(data)
    return str(folder / name)


PAYLOADS = st.binary(max_size=30) | st.text(max_size=9).map(str.encode)
LINES = st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"").replace(b"\0", b"")), max_size=20)


@given(lines=LINES, nul=st.booleans(), ended=st.booleans(), big=st.integers(0, 3))
@settings(max_examples=60)
def test_lines_are_records_byte_for_byte(
    lines: list[bytes], nul: bool, ended: bool, big: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also lines that are longer than what is read at once."""
    lines = [*lines, *(os.urandom(50_000).replace(b"\n", b"").replace(b"\0", b"") for _ in range(big))]
    end = b"\0" if nul else b"\n"
    data = b"".join(line + end for line in lines)
    if not ended and lines and lines[-1]:
        data = data.removesuffix(end)
    records = RecordInput([file_of(tmp_path_factory.mktemp("lines"), data)], ends_with_nul=nul)
    assert asyncio.run(everything(records)) == (lines, [None] * len(lines), None)


async def test_files_follow_each_other_and_txids_count_on(tmp_path: Path) -> None:
    first, second = file_of(tmp_path, b"a\nb\nc", "1"), file_of(tmp_path, b"\nd\n", "2")
    assert await everything(RecordInput([first, second], first_txid=7)) == (
        [b"a", b"b", b"c", b"", b"d"],
        [7, 8, 9, 10, 11],
        None,
    )


async def test_a_whole_file_is_one_record(tmp_path: Path) -> None:
    files = [file_of(tmp_path, data, name) for name, data in (("a", b"1\n2\n"), ("b", b""), ("c", b"\0"))]
    assert (await everything(RecordInput(files, is_whole=True)))[0] == [b"1\n2\n", b"", b"\0"]
    large = file_of(tmp_path, bytes(PAYLOAD_BYTES_MAX), "large")
    assert (await everything(RecordInput([large], is_whole=True)))[0] == [bytes(PAYLOAD_BYTES_MAX)]


async def test_what_is_too_large_is_told_after_all_before_it(tmp_path: Path) -> None:
    small = file_of(tmp_path, b"a\nb\n", "small")
    large = file_of(tmp_path, b"c\n" + bytes(PAYLOAD_BYTES_MAX + 1) + b"\nd\n", "large")
    payloads, _, error = await everything(RecordInput([small, large]))
    assert payloads == [b"a", b"b", b"c"]
    assert isinstance(error, RecordTooLarge)
    assert str(error) == f"line 2 of {large!r} has more than {PAYLOAD_BYTES_MAX} bytes"
    payloads, _, error = await everything(RecordInput([small, large], is_whole=True))
    assert payloads == [b"a\nb\n"]
    assert isinstance(error, RecordTooLarge)
    assert str(error) == f"{large!r} as a whole has more than {PAYLOAD_BYTES_MAX} bytes"


async def test_a_line_without_an_end_is_not_read_to_its_end() -> None:
    payloads, _, error = await asyncio.wait_for(everything(RecordInput(["/dev/zero"])), 30)
    assert payloads == []
    assert isinstance(error, RecordTooLarge)


async def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    first = file_of(tmp_path, b"a\n")
    for bad in (str(tmp_path / "missing"), str(tmp_path)):
        payloads, _, error = await everything(RecordInput([first, bad]))
        assert payloads == [b"a"]
        assert isinstance(error, InvalidArgument)
        assert repr(bad) in str(error)


# --- JSON


def json_of(tmp_path: Path, *lines: object) -> RecordInput:
    """What is no bytes is made JSON."""
    text = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return RecordInput([file_of(tmp_path, b"\n".join(text))], is_json=True)


@given(wanted=st.lists(st.tuples(st.integers(0, TXID_MAX - 1), PAYLOADS)))
@settings(max_examples=60)
def test_what_is_printed_as_json_is_read_as_json(
    wanted: list[tuple[int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    wanted.sort()
    places = (DLSN(Lssn(1), EntryId(number), SlotId(0)) for number in range(len(wanted)))
    printed = RecordOutput(as_json=True).encoded(LogRecord(next(places), txid, each, 1) for txid, each in wanted)
    assert printed.count(b"\n") == len(wanted)
    found = asyncio.run(everything(json_of(tmp_path_factory.mktemp("json"), printed)))
    assert found == ([payload for _, payload in wanted], [txid for txid, _ in wanted], None)


async def test_records_without_a_txid_are_batches_of_their_own(tmp_path: Path) -> None:
    kinds = [1, 2, None, None, 3, None]
    lines = [{"payload": f"{kind}"} | ({} if kind is None else {"txid": kind}) for kind in kinds]
    payloads, txids, error = await everything(json_of(tmp_path, *lines[:3], b"", b"  \t", *lines[3:]))
    assert (payloads, txids, error) == ([f"{kind}".encode() for kind in kinds], kinds, None)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        ([1], "no JSON object"),
        ("text", "no JSON object"),
        ({}, "one of payload and payload_base64"),
        ({"payload": "a", "payload_base64": "YQ=="}, "one of payload and payload_base64"),
        ({"payload": "a", "id": 7}, "'id' is nothing that a record has"),
        ({"payload": {"a": 1}}, "its payload is no text"),
        ({"payload": 7}, "its payload is no text"),
        ({"payload_base64": "a"}, "not base64"),
        ({"payload_base64": "Y Q=="}, "not base64"),
        (b'{"payload": "\\ud800"}', "no text that has bytes"),
        ({"payload": "a", "txid": "7"}, "'7' is no txid"),
        ({"payload": "a", "txid": True}, "True is no txid"),
        ({"payload": "a", "txid": 1.5}, "1.5 is no txid"),
    ],
)
async def test_what_is_no_record_is_told_with_its_line(tmp_path: Path, line: object, said: str) -> None:
    payloads, _, error = await everything(json_of(tmp_path, {"payload": "1"}, b"", line, {"payload": "2"}))
    assert payloads == [b"1"]
    assert isinstance(error, InvalidArgument)
    assert str(error).startswith("line 3 of '")
    assert said in str(error)
    assert "payload_base64" in error.hint


@pytest.mark.parametrize(("txids", "good"), [([5, 5, 4], 2), ([-1], 0), ([TXID_MAX], 0), ([1, 2**70], 1)])
async def test_txids_that_go_back_are_told_with_their_line(tmp_path: Path, txids: list[int], good: int) -> None:
    lines = [{"payload": "a", "txid": txid} for txid in txids]
    payloads, _, error = await everything(json_of(tmp_path, *lines))
    assert len(payloads) == good
    assert isinstance(error, TxidOutOfOrder)
    assert f"line {good + 1} of" in str(error)


async def test_a_payload_that_is_large_only_as_json_fits(tmp_path: Path) -> None:
    control = {"payload": "\x01" * PAYLOAD_BYTES_MAX}
    payloads, _, error = await everything(json_of(tmp_path, control, {"payload": "\x01" * (PAYLOAD_BYTES_MAX + 1)}))
    assert payloads == [b"\x01" * PAYLOAD_BYTES_MAX]
    assert isinstance(error, RecordTooLarge)
    assert "line 2 of" in str(error)
    encoded = {"payload_base64": b64encode(bytes(PAYLOAD_BYTES_MAX)).decode()}
    assert (await everything(json_of(tmp_path, encoded)))[0] == [bytes(PAYLOAD_BYTES_MAX)]


def test_options_that_contradict_each_other_are_refused() -> None:
    for options in (
        {"is_json": True, "is_whole": True},
        {"is_json": True, "ends_with_nul": True},
        {"is_whole": True, "ends_with_nul": True},
        {"is_json": True, "first_txid": 7},
        {"first_txid": -1},
        {"first_txid": TXID_MAX},
    ):
        with pytest.raises(InvalidArgument):
            RecordInput(**options)


# --- Pipes, and Ctrl-C


async def test_a_pipe_is_waited_for_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    """Method: a named pipe, which has no writer at first. What was read without an end counts, too."""
    pipe, got = tmp_path / "pipe", list[bytes]()
    os.mkfifo(pipe)

    async def read() -> None:
        with ctrl_c() as interrupted:
            async with aclosing(RecordInput([str(pipe), "/dev/zero"]).batches(interrupted)) as batches:
                async for batch in batches:
                    got.extend(batch.payloads)

    async def has(count: int) -> bool:
        return len(got) == count

    reading = asyncio.create_task(read())
    writer = os.open(pipe, os.O_RDWR)  # Both, since nobody may have opened it for reading yet.
    try:
        os.write(writer, b"one\ntwo\nth")
        await eventually(lambda: has(2), what="two lines are there")
        os.write(writer, b"ree\nfour\nfi")
        await eventually(lambda: has(4), what="four lines are there")
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(reading, 20)
    finally:
        os.close(writer)
    assert got == [b"one", b"two", b"three", b"four", b"fi"]
