"""Which reads of version 2 wait for an answer, and for how long still. Sans-IO but for one future a run, and in runs.

Such an answer names ledger and entry alone, so that two reads of one entry cannot be told apart. Between plain reads
that does not matter: either answer is true of the entry.

Invariants:
  FencesAreReal   a read that fences is not settled by the answer to one that does not. So answers go to plain reads
                  first, and a read that was given up keeps its place while its answer may still come.
  UnknownIsNone   an answer that nobody waits for changes nothing.
  EveryRunEnds    a run is settled when its last entry is answered, at its deadline, or with the connection.

Per entry there is one slot in a dict, and no object of its own.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from quire.codec.wire.codes import Status
from quire.types import EntryId, LedgerId

ReadAnswer: TypeAlias = tuple[Status, LedgerId, EntryId, memoryview | None]


class ReadRun:
    """Entries of one ledger that were asked for together.

    `future` is done when all are answered, or the rest never will be: then `found` has what came, by entry. It is an
    entry as it is stored, or the status of a refusal.
    """

    __slots__ = ("deadline_s", "entries", "fences", "found", "future", "given_up", "ledger_id", "left")

    def __init__(
        self,
        ledger_id: LedgerId,
        entries: Sequence[EntryId],
        future: "asyncio.Future[None]",
        *,
        deadline_s: float,
        fences: bool,
    ) -> None:
        self.ledger_id, self.entries, self.future = ledger_id, entries, future
        self.deadline_s, self.fences = deadline_s, fences
        self.found: dict[EntryId, memoryview | Status] = {}
        self.left = len(entries)
        self.given_up = False


_Place: TypeAlias = ReadRun | list[ReadRun]  # A list only while an entry is asked for several times.


class PendingReads:
    """The reads of version 2 in flight on one connection."""

    def __init__(self) -> None:
        self._places: dict[LedgerId, dict[EntryId, _Place]] = {}
        self._runs: dict[ReadRun, None] = {}  # Those with a sender who waits.
        self.abandoned = 0  # Entries that nobody waits for, and whose answers may still come.

    def __bool__(self) -> bool:
        return bool(self._runs)

    def push(self, run: ReadRun) -> None:
        self._runs[run] = None
        places = self._places.get(run.ledger_id)
        if places is None:
            places = self._places[run.ledger_id] = {}
        fresh: dict[EntryId, _Place] = dict.fromkeys(run.entries, run)
        if len(fresh) == len(run.entries) and places.keys().isdisjoint(fresh):
            places.update(fresh)
            return
        for entry_id in run.entries:
            place = places.get(entry_id)
            if place is None:
                places[entry_id] = run
            elif isinstance(place, list):
                place.append(run)
            else:
                places[entry_id] = [place, run]

    def on_answers(self, answers: Iterable[ReadAnswer]) -> list[ReadRun]:
        """What arrived, by ids. Returns the runs that are complete now."""
        complete: list[ReadRun] = []
        ledger: LedgerId | None = None
        places: dict[EntryId, _Place] = {}
        for status, ledger_id, entry_id, entry in answers:
            if ledger_id != ledger:
                ledger, places = ledger_id, self._places.get(ledger_id) or {}
            run = places.pop(entry_id, None)
            if run is None:
                continue
            if isinstance(run, list):
                run = _take_one(places, entry_id, run)
            if run.given_up:
                self.abandoned -= 1
                continue
            run.found[entry_id] = status if entry is None else entry
            run.left -= 1
            if not run.left:
                del self._runs[run]
                complete.append(run)
        return complete

    def expire(self, now_s: float) -> list[ReadRun]:
        """Give up on what waited too long, or whose sender was cancelled. Returns those that still have a sender."""
        over = [run for run in self._runs if run.deadline_s <= now_s or run.future.done()]
        for run in over:
            del self._runs[run]
            run.given_up = True
            self.abandoned += run.left
        for ledger_id in [ledger_id for ledger_id, places in self._places.items() if not places]:
            del self._places[ledger_id]
        return [run for run in over if not run.future.done()]

    def take_all(self) -> list[ReadRun]:
        """Give up on everything: the connection is gone."""
        self._places.clear()
        return self.expire(float("inf"))


def _take_one(places: dict[EntryId, _Place], entry_id: EntryId, waiting: list[ReadRun]) -> ReadRun:
    """Whom an answer is for: plain reads before fencing ones, and among plain ones those with a sender first.

    The bookie may have dropped what the others asked.
    """
    run = min(waiting, key=lambda each: (each.fences, each.given_up))
    waiting.remove(run)
    places[entry_id] = waiting[0] if len(waiting) == 1 else waiting
    return run
