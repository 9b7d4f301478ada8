"""Entries in order, each one verified: a window of them is fetched while the one before it is used.

Where every bookie has every entry, one bookie is asked for as many as fit into a batch. Where entries are striped over
the ensemble, a batch would end at the first entry that its bookie does not have: then each bookie gets one run of
requests for all entries of the window that it should have.

Replicas are asked one after the other, in the order of the write set with bookies that failed lately at the end. When
one is slow, another one is asked as well: a hedged read. Not if the slow one has answered other reads of the same
window: then it is only busy. A copy that fails its digest counts as an error of that bookie, is reported
(`quire.ledger.damage`), and the next replica is asked.

Of several errors about one entry, the one that says most is raised: "no such entry" gives way to everything, since only
all replicas together can say so; "unavailable" gives way to whatever a bookie did say; anything else stays. If every
bookie has answered and no copy can be used, the entry is lost, and its error says so.

Invariants:
  InOrder      each entry is yielded once, and never before the one before it.
  Bounded      a window is `read_ahead_bytes` or one entry, as a batch; as a run it has `read_ahead_entries_max`
               entries at most, and fewer where the last window had large ones. Two windows at most are held.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Final, TypeAlias

from quire.codec.digest import Buffer
from quire.codec.entry import Entry
from quire.codec.wire.codes import Status
from quire.errors import (
    BookieFailed,
    BookieUnavailable,
    DamagedEntry,
    EntriesUnknown,
    NoSuchEntry,
    NoSuchLedger,
    QuireError,
)
from quire.ledger.damage import IS_LOST
from quire.ledger.reading.hedging import Hurry, ask_in_turn
from quire.ledger.reading.view import LedgerView
from quire.rpc import BookieChannel, ReadRun, status_error
from quire.types import BookieId, EntryId, LedgerId

_FIRST_WINDOW: Final = 16  # Nothing is known of the sizes of entries yet.
_GROWTH: Final = 4
BATCH_ENTRIES_MAX: Final = 4096  # Verifying more at once would keep the event loop from everybody else.


# --- One window, from the replicas of its entries


# Of one bookie: entries, or why not. A batch says nothing of those that it leaves out.
Answers: TypeAlias = Mapping[EntryId, Buffer | Status | QuireError]


class ReplicaRead:
    """Entries that have the same replicas. After `run`, each is in `found`, or `problems` has what its bookies said.

    With `batch_last` there is one entry, and those up to `batch_last` come along as far as a bookie has them.
    `answered` has the bookies that gave entries of the same window. `on_asked` is called once, as the first request is
    sent, or waits for a connection.
    """

    def __init__(
        self,
        reader: LedgerView,
        entries: Sequence[EntryId],
        replicas: Sequence[BookieId],
        answered: set[BookieId],
        on_asked: Callable[[], None],
        *,
        batch_last: EntryId | None = None,
    ) -> None:
        self._reader, self._replicas, self._answered = reader, replicas, answered
        self._missing, self._on_asked = entries, on_asked
        self._batch_last = batch_last
        self._asked: dict[BookieId, ReadRun | None] = {}
        self.found: dict[EntryId, Entry] = {}
        self.problems: dict[EntryId, dict[BookieId, QuireError]] = {}

    async def run(self) -> None:
        settings = self._reader.settings
        hurry = Hurry(settings.speculative_read_s, settings.speculative_read_s_max)
        await ask_in_turn(self._replicas, self._ask, self._take, hurry, self._may_hurry)

    # --- Asking

    async def _ask(self, bookie: BookieId) -> Answers:
        reader, client = self._reader, self._reader.client
        timeout_s = reader.settings.read_timeout_s
        if not self._asked:
            asyncio.get_running_loop().call_soon(self._on_asked)  # This step sends the request first.
        self._asked[bookie] = None
        channel = client.pool.channel(bookie, 2) or await client.pool.connect(bookie, 2, timeout_s=timeout_s)
        reader.counts.requests += 1
        if self._batch_last is not None and reader.can_batch:
            return await self._ask_for_batch(channel, self._missing[0], self._batch_last)
        run = self._asked[bookie] = channel.send_reads(reader.id, self._missing, timeout_s=timeout_s)
        try:
            await run.future
        except QuireError as error:
            return dict.fromkeys(run.entries, error) | run.found
        return run.found

    async def _ask_for_batch(self, channel: BookieChannel, first: EntryId, last: EntryId) -> Answers:
        reader = self._reader
        try:
            entries = await channel.read_batch(
                reader.id,
                first,
                entries_max=min(last - first + 1, BATCH_ENTRIES_MAX),
                bytes_max=reader.settings.read_ahead_bytes,
                timeout_s=reader.settings.read_timeout_s,
            )
        except BookieUnavailable:
            if channel.closed:
                reader.can_batch = False  # Perhaps it crashed; perhaps it is too old. Runs do in either case.
            raise
        if not entries:
            return {first: NoSuchEntry(f"bookie {channel.bookie} sent an empty batch", ledger_id=reader.id)}
        return {EntryId(first + step): entry for step, entry in enumerate(entries)}

    def _may_hurry(self) -> bool:
        """Not if one of those who were asked gave entries of this window: it works, and may have a lot to do."""
        for bookie, run in self._asked.items():
            if bookie in self._answered:
                return False
            if run is not None and any(not isinstance(each, Status) for each in run.found.values()):
                return False
        if len(self._asked) == len(self._replicas):
            return False
        self._reader.counts.speculative += 1
        self._reader.client.metrics.on_speculative_read()
        return True

    # --- Taking in

    def _take(self, bookie: BookieId, answers: Answers | QuireError, silent: list[BookieId]) -> bool:
        if isinstance(answers, QuireError):
            answers = dict.fromkeys(self._missing, answers)
        problems: dict[type[QuireError], QuireError] = {}  # One of each kind: a run is one request.
        before = len(self.found)
        found, decode = self.found, self._reader.codec.decode
        for entry_id, answer in answers.items():
            if entry_id in found:
                continue
            if isinstance(answer, QuireError):
                problem = answer
            elif isinstance(answer, Status):
                problem = status_error(answer, bookie=bookie, ledger_id=self._reader.id, entry_id=entry_id)
            else:
                try:
                    found[entry_id] = decode(answer, entry_id=entry_id)
                    continue
                except DamagedEntry as error:
                    problem = error
            problems[type(problem)] = problem
            self._reader.on_bad_copy(bookie, entry_id, problem)
            self.problems.setdefault(entry_id, {})[bookie] = problem
            if self._batch_last is not None:
                break  # What comes behind it would leave a gap.
        self._report(bookie, problems, len(found) - before, silent)
        self._missing = [entry_id for entry_id in self._missing if entry_id not in found]
        return not self._missing

    def _report(
        self, bookie: BookieId, problems: Mapping[type[QuireError], QuireError], gained: int, silent: list[BookieId]
    ) -> None:
        reader = self._reader
        for problem in problems.values():
            reader.counts.on_failure(problem)
            reader.client.on_bookie_error(bookie, problem)
        if gained:
            self._answered.add(bookie)
            for other in silent:
                reader.client.on_bookie_slow(other)
            if not problems:
                reader.client.on_bookie_answer(bookie)


async def read_all(reads: Sequence[ReplicaRead]) -> None:
    """Carry out reads at the same time."""
    if len(reads) == 1:
        await reads[0].run()
        return
    tasks = [asyncio.create_task(read.run()) for read in reads]
    try:
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# --- Why no replica gave an entry


def more_telling(known: QuireError | None, newer: QuireError) -> QuireError:
    """Which of two errors about one entry to keep."""
    if known is None or isinstance(known, NoSuchEntry | NoSuchLedger):
        return newer
    if isinstance(known, BookieUnavailable) and not isinstance(newer, NoSuchEntry | NoSuchLedger):
        return newer
    return known


def entry_error(problems: Mapping[BookieId, QuireError], ledger_id: LedgerId, entry_id: EntryId) -> QuireError:
    """What to raise for an entry that no replica gave. Bookies that know nothing of the ledger deny the entry."""
    error: QuireError | None = None
    for problem in problems.values():
        error = more_telling(error, problem)
    if error is None:
        return BookieUnavailable(f"no bookie has entry {entry_id} of ledger {ledger_id}", ledger_id=ledger_id)
    if isinstance(error, NoSuchLedger):
        denied = NoSuchEntry(f"ledger {ledger_id} has no entry {entry_id}", ledger_id=ledger_id, entry_id=entry_id)
        denied.__cause__ = error
        return denied
    return error


async def lost_error(
    reader: LedgerView, entry_id: EntryId, problems: Mapping[BookieId, QuireError]
) -> DamagedEntry | None:
    """What to raise if no copy of an entry is left: each of its bookies has said that its copy cannot be used, or that
    it has none. None if one that was not heard may have an intact one.

    While a ledger is written a copy that is missing may still be on its way.
    """

    def those(*kinds: type[QuireError]) -> dict[BookieId, QuireError]:
        return {bookie: problem for bookie, problem in problems.items() if isinstance(problem, kinds)}

    damaged, failed = those(DamagedEntry, EntriesUnknown), those(BookieFailed)
    denied = those(NoSuchEntry, NoSuchLedger)
    have_all_answered = len(damaged) + len(failed) + len(denied) == len(reader.replicas_of(entry_id))
    if not have_all_answered or not (damaged or failed) or (denied and not reader.is_closed):
        return None
    for bookie in failed:
        if not await _is_damaged(reader, bookie, entry_id):
            return None
    damaged |= failed
    lost = DamagedEntry(
        f"no copy of entry {entry_id} of ledger {reader.id} is left: it is damaged on {', '.join(sorted(damaged))}",
        hint="All bookies that should have it were asked. If other entries fail, too, check password and digest type.",
        ledger_id=reader.id,
        entry_id=entry_id,
        **{IS_LOST: True},
    )
    lost.__cause__ = next(iter(damaged.values()))
    return lost


async def _is_damaged(reader: LedgerView, bookie: BookieId, entry_id: EntryId) -> bool:
    """Whether a bookie failed because its copy is damaged, and not its disk: version 2 has one answer for both."""
    timeout_s = reader.settings.read_timeout_s
    try:
        channel = await reader.client.pool.connect(bookie, 3, timeout_s=timeout_s)
        reader.counts.requests += 1
        await channel.read(reader.id, entry_id, version=3, timeout_s=timeout_s)
    except EntriesUnknown:
        return True
    except QuireError:
        return False
    return False


# --- Windows, one after the other


class EntryRange:
    """The entries from `first` to `last`, both included."""

    def __init__(self, reader: LedgerView, first: EntryId, last: EntryId) -> None:
        self._reader, self._next, self._last = reader, first, last
        self._window = _FIRST_WINDOW
        self._server: BookieId | None = None  # Who gave the last batch.
        self._unasked, self._all_asked = 0, asyncio.Event()  # Of the reads of the present window.

    async def windows(self) -> AsyncGenerator[list[Entry]]:
        """One or more entries at a time. Raises what `fetch` raises, after all entries before that one."""
        ahead: asyncio.Task[list[Entry]] | None = None
        try:
            while self._next <= self._last:
                entries = await (ahead or self.fetch(self._next))
                self._next, ahead = EntryId(entries[-1].entry_id + 1), None
                if self._next <= self._last:
                    # The requests leave first: a caller that waits for nothing else keeps the loop to itself, and the
                    # bookies should work meanwhile.
                    self._all_asked.clear()
                    ahead = asyncio.create_task(self.fetch(self._next), name=f"read ahead in ledger {self._reader.id}")
                    ahead.add_done_callback(lambda _: self._all_asked.set())
                    await self._all_asked.wait()
                yield entries
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def fetch(self, first: EntryId) -> list[Entry]:
        """One or more from `first` on. Raises `lost_error`, or the error that says most, if no replica has it."""
        reader, metrics = self._reader, self._reader.client.metrics
        began_s, stage, others = reader.clock.monotonic(), "bookies", metrics.speculative_reads.value
        while True:
            fragment, end = reader.fragment_of(first)
            last = self._last if end is None else min(self._last, EntryId(end - 1))
            answered: set[BookieId] = set()
            reads = self._batch(first, last, answered) or self._runs(first, last, answered)
            self._unasked = len(reads)
            await read_all(reads)
            entries = _in_order(reads, first)
            if entries:
                self._server = min(answered, default=None)  # Of a batch it is the only one.
                self._on_entries(entries)
                if stage == "bookies" and metrics.speculative_reads.value > others:
                    stage = "slow bookie"  # Another one was asked as well.
                metrics.on_read_seconds(reader.clock.monotonic() - began_s, stage, reader.id, first)
                return entries
            if not await reader.has_moved(first, fragment.bookies):
                metrics.on_read_failed()
                problems = next((read.problems[first] for read in reads if first in read.problems), {})
                raise await lost_error(reader, first, problems) or entry_error(problems, reader.id, first)
            stage = "moved entries"

    def _batch(self, first: EntryId, last: EntryId, answered: set[BookieId]) -> list[ReplicaRead] | None:
        quorum = self._reader.metadata.metadata.quorum
        if last == first or quorum.ensemble != quorum.write or not self._reader.can_batch:
            return None
        replicas = list(self._reader.replicas_of(first))
        if self._server in replicas:  # It has read ahead by now. The others need not do that, too.
            replicas.remove(self._server)
            replicas.insert(0, self._server)
        return [ReplicaRead(self._reader, (first,), replicas, answered, self._on_asked, batch_last=last)]

    def _runs(self, first: EntryId, last: EntryId, answered: set[BookieId]) -> list[ReplicaRead]:
        """One for each write set: its entries have the same replicas."""
        reader, stripes = self._reader, self._reader.metadata.metadata.quorum.ensemble
        end = min(last + 1, first + self._window)
        return [
            ReplicaRead(
                reader,
                [EntryId(each) for each in range(start, end, stripes)],
                reader.replicas_of(start),
                answered,
                self._on_asked,
            )
            for start in map(EntryId, range(first, min(end, first + stripes)))
        ]

    def _on_asked(self) -> None:
        self._unasked -= 1
        if self._unasked == 0:
            self._all_asked.set()

    def _on_entries(self, entries: list[Entry]) -> None:
        reader, sizes = self._reader, [len(entry.payload) for entry in entries]
        reader.on_entries(entries, sum(sizes))
        fitting = reader.settings.read_ahead_bytes // max(1, max(sizes))
        self._window = max(1, min(self._window * _GROWTH, fitting, reader.settings.read_ahead_entries_max))


async def read_entry(reader: LedgerView, entry_id: EntryId) -> Entry:
    """One entry: see `LedgerReader.read_entry`."""
    return (await EntryRange(reader, entry_id, entry_id).fetch(entry_id))[0]


def _in_order(reads: list[ReplicaRead], first: EntryId) -> list[Entry]:
    """All that were found from `first` on without a gap."""
    found = reads[0].found
    if len(reads) > 1:
        found = {entry_id: entry for read in reads for entry_id, entry in read.found.items()}
    entries: list[Entry] = []
    while (entry := found.get(EntryId(first + len(entries)))) is not None:
        entries.append(entry)
    return entries
