"""Entries from their replicas: those with the same replicas together, each entry verified, in runs.

Replicas are asked one after the other, in the order of the write set with bookies that failed lately at the end. When
one is slow another one is asked as well, unless the slow one has answered other reads of the same window: then it is
only busy. A copy that fails its digest counts as an error of that bookie, is told (`quire.ledger.damage`), and the next
one is asked.

Of several errors about one entry the one is raised that says most: "no such entry" gives way to everything, since only
all replicas together can say so; "unavailable" gives way to whatever a bookie did say; anything else stays. If every
bookie has answered and no copy can be used the entry is lost, and its error says so.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

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
from quire.ledger.in_turn import Hurry, ask_in_turn
from quire.rpc import BookieChannel, ReadRun, status_error
from quire.types import BookieId, EntryId, LedgerId

if TYPE_CHECKING:
    from quire.ledger.reader import LedgerReader

BATCH_ENTRIES_MAX: Final = 4096  # Verifying more at once would keep the event loop from everybody else.

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
        reader: "LedgerReader",
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
    reader: "LedgerReader", entry_id: EntryId, problems: Mapping[BookieId, QuireError]
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


async def _is_damaged(reader: "LedgerReader", bookie: BookieId, entry_id: EntryId) -> bool:
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
