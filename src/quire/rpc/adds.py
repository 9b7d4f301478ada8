"""Which adds of one connection are waiting for an answer, and for how long still. Sans-IO, and in runs.

Version 2 has nothing to tell two adds of one entry apart: whichever answer comes first goes to the add sent first. Both
carry the same entry, so either answer is true of it. Version 3 has a transaction id for each add.

Bookies answer the adds of a ledger in the order in which they came, nearly always: then a run of answers is compared
with the runs that were sent, at about the cost of one. Only answers out of turn are looked for one by one.

Invariants:
  OneEndEach       every entry of every run that was pushed is reported once: answered, or lost.
  UnknownIsNone    an answer that nobody waits for (late, repeated, invented) changes nothing.
  DeadlinesAscend  all adds wait equally long, so runs expire in the order in which they were sent.
"""

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeAlias

from quire.codec.wire.codes import Status
from quire.errors import QuireError
from quire.types import EntryId, LedgerId
from quire.values import dataclass

EntryIds: TypeAlias = Sequence[EntryId] | range
AddAnswers: TypeAlias = list[tuple[Status, Sequence[EntryId]]]
"""Runs of entries that were answered alike, in the order in which the answers arrived."""


class AddSink(Protocol):
    """Who sent adds, and hears what became of them. One sink is for one ledger: only entry ids come back.

    Both methods run inside the event loop's callbacks. They must not raise; they may send more adds.
    """

    def on_add_answers(self, answers: AddAnswers) -> None:
        """All answers that arrived together."""

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        """These will not be answered. Unless `error` says otherwise they may have been stored."""


@dataclass(slots=True, eq=False)
class _Run:
    ledger_id: LedgerId
    entries: tuple[EntryId, ...]
    sink: AddSink
    deadline_s: float
    txn_id: int = 0  # 0 for version 2.
    answered: int = 0  # So many, from the first on.
    scattered: Counter[EntryId] | None = None  # What is not answered, once an answer came out of turn.

    def take(self, entry_id: EntryId) -> bool:
        """Whether the entry was still to be answered; now it is not."""
        left = self.scattered
        if left is None:
            if entry_id not in self.entries[self.answered :]:
                return False
            left = self.scattered = Counter(self.entries[self.answered :])
        if left[entry_id] <= 0:
            return False
        left[entry_id] -= 1
        return True

    @property
    def unanswered(self) -> list[EntryId]:
        if self.scattered is None:
            return list(self.entries[self.answered :])
        return list(self.scattered.elements())


class PendingAdds:
    """The adds in flight on one connection."""

    def __init__(self) -> None:
        self._by_ledger: dict[LedgerId, deque[_Run]] = {}  # Of version 2, in the order of sending.
        self._by_txn: dict[int, _Run] = {}
        self._runs: deque[_Run] = deque()  # All of them, also answered ones until the next look.

    def __bool__(self) -> bool:
        """Whether there is anything to look at again. True for a while after the last answer."""
        return bool(self._runs)

    def push(self, ledger_id: LedgerId, entries: EntryIds, sink: AddSink, *, deadline_s: float) -> None:
        """A run sent in version 2."""
        if entries:
            run = _Run(ledger_id, tuple(entries), sink, deadline_s)  # type: ignore[arg-type]  # A range has no ids.
            self._runs.append(run)
            self._by_ledger.setdefault(ledger_id, deque()).append(run)

    def push_v3(self, txn_id: int, ledger_id: LedgerId, entry_id: EntryId, sink: AddSink, *, deadline_s: float) -> None:
        """One add sent in version 3."""
        run = _Run(ledger_id, (entry_id,), sink, deadline_s, txn_id)
        self._runs.append(run)
        self._by_txn[txn_id] = run

    # --- Answers

    def on_answers(
        self, v2: Iterable[tuple[Status, LedgerId, tuple[EntryId, ...]]], v3: Iterable[tuple[Status, int]] = ()
    ) -> list[tuple[AddSink, AddAnswers]]:
        """What arrived, in runs by ids and one by one by transaction id. Returns it by sink."""
        by_sink: dict[int, tuple[AddSink, AddAnswers]] = {}
        for status, ledger_id, entry_ids in v2:
            runs = self._by_ledger.get(ledger_id)
            if runs:
                for sink, answered in _match(runs, entry_ids):
                    by_sink.setdefault(id(sink), (sink, []))[1].append((status, answered))
        for status, txn_id in v3:
            run = self._by_txn.pop(txn_id, None)
            if run is not None:
                run.answered = 1
                by_sink.setdefault(id(run.sink), (run.sink, []))[1].append((status, run.entries))
        return list(by_sink.values())

    # --- Deadlines

    def expire(self, now_s: float) -> list[tuple[AddSink, list[EntryId]]]:
        """Give up on what waited too long, and forget what is done. Returns the lost entries by sink."""
        runs = self._runs
        lost: dict[int, tuple[AddSink, list[EntryId]]] = {}
        while runs:
            run = runs[0]
            entry_ids = run.unanswered
            if entry_ids:
                if run.deadline_s > now_s:
                    break
                self._forget(run)
                lost.setdefault(id(run.sink), (run.sink, []))[1].extend(entry_ids)
            runs.popleft()
        for ledger_id in [ledger_id for ledger_id, pending in self._by_ledger.items() if not pending]:
            del self._by_ledger[ledger_id]
        return list(lost.values())

    def take_all(self) -> list[tuple[AddSink, list[EntryId]]]:
        """Give up on everything: the connection is gone."""
        return self.expire(float("inf"))

    def _forget(self, run: _Run) -> None:
        if run.txn_id:
            del self._by_txn[run.txn_id]
        else:
            self._by_ledger[run.ledger_id].remove(run)


def _match(runs: deque[_Run], entry_ids: tuple[EntryId, ...]) -> list[tuple[AddSink, tuple[EntryId, ...]]]:
    """Who sent these, in pieces. Runs that are answered leave `runs`."""
    found: list[tuple[AddSink, tuple[EntryId, ...]]] = []
    sink: AddSink | None = None
    begin = at = 0  # From `begin` to `at` all belong to `sink`.
    while at < len(entry_ids) and runs:
        run = runs[0]
        count = min(len(entry_ids) - at, len(run.entries) - run.answered)
        in_turn = run.entries[run.answered : run.answered + count]
        if run.scattered is None and entry_ids[at : at + count] == in_turn:
            run.answered += count
        else:
            count = 1
            taken = next((each for each in runs if each.take(entry_ids[at])), None)
            if taken is None:
                if sink is not None:
                    found.append((sink, entry_ids[begin:at]))
                sink, at = None, at + 1
                continue
            run = taken
        if run.sink is not sink:
            if sink is not None:
                found.append((sink, entry_ids[begin:at]))
            sink, begin = run.sink, at
        at += count
        if not run.unanswered if run.scattered is not None else run.answered == len(run.entries):
            runs.remove(run)
    if sink is not None:
        found.append((sink, entry_ids[begin:at]))
    return found
