"""Which adds of one connection are waiting for an answer, and for how long still. Sans-IO, and in runs.

Version 2 has nothing to tell two adds of one entry apart: whichever answer comes first goes to the add sent first. Both
carry the same entry, so either answer is true of it. Version 3 has a transaction id for each add.

Invariants:
  OneEndEach       every entry of every run that was pushed is reported once: answered, or lost.
  UnknownIsNone    an answer that nobody waits for (late, repeated, invented) changes nothing.
  DeadlinesAscend  all adds wait equally long, so runs expire in the order in which they were sent.

Per entry there is one slot in a dict, and no object of its own. Runs that are answered leave the deque of deadlines at
the next look at it, so that it is about as long as what is in flight.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from quire.codec.wire.codes import Status
from quire.errors import QuireError
from quire.types import EntryId, LedgerId

if TYPE_CHECKING:
    from quire.rpc.channel import BookieChannel

EntryIds: TypeAlias = Sequence[EntryId] | range
AddAnswers: TypeAlias = list[tuple[EntryId, Status]]


class AddSink(Protocol):
    """Who sent adds, and hears what became of them. One sink is for one ledger: only entry ids come back.

    Both methods run inside the event loop's callbacks. They must not raise; they may send more adds.
    """

    def on_add_answers(self, channel: "BookieChannel", answers: AddAnswers) -> None:
        """All answers that arrived together, in the order in which they arrived."""

    def on_add_lost(self, channel: "BookieChannel", entry_ids: list[EntryId], error: QuireError) -> None:
        """These will not be answered. Unless `error` says otherwise they may have been stored."""


@dataclass(slots=True, eq=False)
class _Run:
    ledger_id: LedgerId
    entries: EntryIds
    sink: AddSink
    deadline_s: float
    txn_id: int  # 0 for version 2.


_NOTHING: Final[dict[EntryId, _Run]] = {}


class PendingAdds:
    """The adds in flight on one connection."""

    def __init__(self) -> None:
        self._by_ledger: dict[LedgerId, dict[EntryId, _Run]] = {}
        self._doubled: dict[tuple[LedgerId, EntryId], deque[_Run]] = {}  # Sent again while still in flight. Rare.
        self._by_txn: dict[int, _Run] = {}
        self._runs: deque[_Run] = deque()

    def __bool__(self) -> bool:
        """Whether there is anything to look at again. True for a while after the last answer."""
        return bool(self._runs)

    def push(self, ledger_id: LedgerId, entries: EntryIds, sink: AddSink, *, deadline_s: float) -> None:
        """A run sent in version 2. `entries` must not change any more."""
        run = _Run(ledger_id, entries, sink, deadline_s, 0)
        self._runs.append(run)
        pending = self._by_ledger.get(ledger_id)
        if pending is None:
            pending = self._by_ledger[ledger_id] = {}
        fresh: dict[EntryId, _Run] = dict.fromkeys(entries, run)  # type: ignore[arg-type]  # A range has no ids.
        if len(fresh) == len(entries) and pending.keys().isdisjoint(fresh):
            pending.update(fresh)
            return
        for entry_id in _ids(entries):
            if entry_id in pending:
                self._doubled.setdefault((ledger_id, entry_id), deque()).append(run)
            else:
                pending[entry_id] = run

    def push_v3(self, txn_id: int, ledger_id: LedgerId, entry_id: EntryId, sink: AddSink, *, deadline_s: float) -> None:
        """One add sent in version 3."""
        run = _Run(ledger_id, (entry_id,), sink, deadline_s, txn_id)
        self._runs.append(run)
        self._by_txn[txn_id] = run

    def on_answers(
        self, v2: Iterable[tuple[Status, LedgerId, EntryId]], v3: Iterable[tuple[Status, int]] = ()
    ) -> list[tuple[AddSink, AddAnswers]]:
        """What arrived, by ids and by transaction id. Returns it by sink."""
        by_sink: dict[int, tuple[AddSink, AddAnswers]] = {}
        sink: AddSink | None = None
        answers: AddAnswers = []
        ledger: LedgerId | None = None
        pending = _NOTHING
        doubled = self._doubled
        for status, ledger_id, entry_id in v2:
            if ledger_id != ledger:
                ledger, pending = ledger_id, self._by_ledger.get(ledger_id, _NOTHING)
            run = pending.pop(entry_id, None)
            if run is None:
                continue
            if doubled:
                self._promote(pending, ledger_id, entry_id)
            if run.sink is not sink:
                sink, answers = by_sink.setdefault(id(run.sink), (run.sink, []))
            answers.append((entry_id, status))
        for status, txn_id in v3:
            run = self._by_txn.pop(txn_id, None)
            if run is not None:
                _, answers = by_sink.setdefault(id(run.sink), (run.sink, []))
                answers.append((_ids(run.entries)[0], status))
        return list(by_sink.values())

    def expire(self, now_s: float) -> list[tuple[AddSink, list[EntryId]]]:
        """Give up on what waited too long, and forget what is done. Returns the lost entries by sink."""
        runs = self._runs
        lost: dict[int, tuple[AddSink, list[EntryId]]] = {}
        while runs:
            run = runs[0]
            if not self._is_done(run):
                if run.deadline_s > now_s:
                    break
                self._lose(run, lost)
            runs.popleft()
        for ledger_id in [ledger_id for ledger_id, pending in self._by_ledger.items() if not pending]:
            del self._by_ledger[ledger_id]
        return list(lost.values())

    def take_all(self) -> list[tuple[AddSink, list[EntryId]]]:
        """Give up on everything: the connection is gone."""
        return self.expire(float("inf"))

    def _is_done(self, run: _Run) -> bool:
        """Cautious: an entry that was sent again counts as not done until that is answered, too."""
        if run.txn_id:
            return run.txn_id not in self._by_txn
        return self._by_ledger.get(run.ledger_id, _NOTHING).keys().isdisjoint(run.entries)

    def _lose(self, run: _Run, lost: dict[int, tuple[AddSink, list[EntryId]]]) -> None:
        entry_ids: list[EntryId] = []
        if run.txn_id:
            del self._by_txn[run.txn_id]
            entry_ids += _ids(run.entries)
        else:
            pending = self._by_ledger[run.ledger_id]
            for entry_id in _ids(run.entries):
                if pending.get(entry_id) is run:
                    del pending[entry_id]
                    self._promote(pending, run.ledger_id, entry_id)
                    entry_ids.append(entry_id)
        if entry_ids:
            lost.setdefault(id(run.sink), (run.sink, []))[1].extend(entry_ids)

    def _promote(self, pending: dict[EntryId, _Run], ledger_id: LedgerId, entry_id: EntryId) -> None:
        """The add that went before is settled: the next answer belongs to the one after it."""
        waiting = self._doubled.get((ledger_id, entry_id))
        if waiting is not None:
            pending[entry_id] = waiting.popleft()
            if not waiting:
                del self._doubled[ledger_id, entry_id]


def _ids(entries: EntryIds) -> Sequence[EntryId]:
    return entries  # type: ignore[return-value]  # A range of ids is a sequence of ids; its type cannot say so.
