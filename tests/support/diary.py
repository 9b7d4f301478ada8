"""What a process did and was told, line by line in a file that outlives it, and the payloads it wrote.

A line is written before the thing is done (`sent`) or at once when the process learns of it (the others), with one
system call: what a killed process wrote is there. So each entry that was acknowledged to a process is known to be, and
so is each payload that may be anywhere.

Each payload says who made it and which one of theirs it is; the rest of its bytes follow from that. So a reader knows
from the bytes alone whether they are what was sent, and a diary needs numbers only.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from quire.types import EntryId, LedgerId
from tests.support.ledgers.history import LedgerHistory

PAYLOAD_BYTES_MIN, PAYLOAD_BYTES_MAX = 200, 4096


def payload_of(author: str, number: int) -> bytes:
    """The payload that `author` sends as its `number`th."""
    head = f"{author}/{number}:".encode()
    digest = hashlib.sha256(head).digest()
    size = PAYLOAD_BYTES_MIN + int.from_bytes(digest[:4]) % (PAYLOAD_BYTES_MAX - PAYLOAD_BYTES_MIN + 1)
    return (head + digest * (size // len(digest) + 1))[:size]


def origin_of(payload: bytes) -> tuple[str, int]:
    """Who sent a payload, as the how many-th. Raises `AssertionError` for bytes that nobody sends."""
    author, _, number = payload.partition(b":")[0].decode(errors="replace").rpartition("/")
    assert number.isdecimal(), f"nobody sends {payload[:60]!r}"
    assert payload == payload_of(author, int(number)), f"the bytes of {author}/{number} are not those that were sent"
    return author, int(number)


class Diary:
    """Where one life of a process writes."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, event: str, ledger_id: int, *facts: object) -> None:
        line = json.dumps([event, ledger_id, *facts]).encode() + b"\n"
        assert os.write(self._file, line) == len(line)

    # --- Of a writer

    def created(self, ledger_id: int) -> None:
        self.note("created", ledger_id)

    def sent(self, ledger_id: int, numbers: range) -> None:
        self.note("sent", ledger_id, numbers.start, numbers.stop)

    def acknowledged(self, ledger_id: int, entry_ids: Sequence[int], numbers: range) -> None:
        self.note("acknowledged", ledger_id, list(entry_ids), numbers.start, numbers.stop)

    def gave_up(self, ledger_id: int, error: Exception) -> None:
        """It goes on with another ledger: it was told why."""
        self.note("gave up", ledger_id, type(error).__name__, str(error))

    # --- Of anybody

    def ended(self, ledger_id: int, last: int) -> None:
        """The ledger is sealed, and this is its last entry: so a client was told."""
        self.note("ended", ledger_id, last)

    def lac(self, ledger_id: int, handle: int, lac: int) -> None:
        """One handle of this life says that all up to here is confirmed."""
        self.note("lac", ledger_id, handle, lac)

    def read(self, ledger_id: int, entry_id: int, author: str, number: int) -> None:
        self.note("read", ledger_id, entry_id, author, number)


@dataclass(frozen=True, slots=True)
class Line:
    event: str
    ledger_id: LedgerId
    facts: list[object]


def lines_of(path: Path) -> Iterator[Line]:
    """What a diary says. A line that was never finished says nothing."""
    for line in path.read_bytes().split(b"\n")[:-1]:
        event, ledger_id, *facts = json.loads(line)
        yield Line(event, LedgerId(ledger_id), facts)


def all_lines(diaries: Iterable[Path]) -> dict[LedgerId, list[tuple[str, Line]]]:
    """What diaries say, with their authors, by ledger."""
    found: dict[LedgerId, list[tuple[str, Line]]] = {}
    for path in diaries:
        for line in lines_of(path):
            found.setdefault(line.ledger_id, []).append((path.stem, line))
    return found


def note(history: LedgerHistory, lines: list[tuple[str, Line]]) -> None:
    """Have the history of a ledger say what diaries say of it."""
    for author, line in lines:
        match line.event, line.facts:
            case "sent", [int(first), int(end)]:
                history.on_sent([payload_of(author, number) for number in range(first, end)])
            case "acknowledged", [list(entry_ids), int(first), int(end)]:
                payloads = [payload_of(author, number) for number in range(first, end)]
                history.on_acknowledged([EntryId(entry_id) for entry_id in entry_ids], payloads)
            case "ended", [int(last)]:
                history.on_end(author, EntryId(last))
            case "lac", [int(handle), int(lac)]:
                history.on_lac(f"{author}#{handle}", EntryId(lac))
            case "read", [int(entry_id), str(writer), int(number)]:
                history.on_shown(EntryId(entry_id), payload_of(writer, number))
            case _:
                assert line.event in ("created", "gave up"), f"{author} wrote {line}"
