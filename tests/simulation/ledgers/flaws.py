"""Bugs that ledger clients and bookies have had, or could have, each as a patch around a simulation.

Nothing of this is ever part of what is shipped. `FLAWS` says for each which workload meets it, and within how many
seeds. Numbers of cases are those of the historic bugs in docs/reliability.md.

Two bugs of that list cannot do harm here, so there is nothing to find:
  Coverage too small (case 4). If too few bookies are asked for the LAC, the one that is found is too low. Recovery then
  looks at more entries than it need. Each of those reads fences by itself, and an entry is called absent only by enough
  bookies of its own write set. `one_denial_is_absence` is the mistake of this kind that harms.
  Acknowledgements ignored after the quorum (case 8). A bookie that joins gets everything that is not confirmed, also
  what was complete before, so its own answer makes up for the one that was ignored.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partialmethod
from typing import Any
from unittest.mock import patch

from quire.bookie import bookie as bookie_module
from quire.bookie import storage_start
from quire.bookie.connection import BookieConnection
from quire.bookie.identity import Identity
from quire.bookie.journal import Journal
from quire.bookie.ledger_table import LedgerTable
from quire.bookie.service import BookieService
from quire.codec.cookie import Cookie
from quire.codec.journal import FENCE
from quire.codec.wire.codes import Status
from quire.errors import Damaged, NoSuchEntry, QuireError
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.repair import recovery
from quire.ledger.writing import ensemble_change as ensembles
from quire.ledger.writing.writer import LedgerWriter
from quire.metadata import ANY_VERSION, Ledgers
from quire.protocol.appends import PendingAppends
from quire.types import EntryId
from tests.simulation.harness import Flaw, Patch
from tests.simulation.ledgers.workloads import WORKLOADS

# --- Recovery


def reads_that_do_not_fence() -> Patch:
    """A bookie that was not fenced says that it lacks an entry, and takes it a moment later (case 1)."""
    original = LedgerReader.read_from

    async def read_from(self: Any, bookie: Any, entry_id: Any, *, fence: bool) -> Any:
        return await original(self, bookie, entry_id, fence=False)

    return patch.object(LedgerReader, "read_from", read_from)


def one_denial_is_absence() -> Patch:
    """A single "no such entry" ends the ledger, though others may have acknowledged it."""
    return patch.object(recovery, "absences_needed", lambda quorum: 1)


def errors_are_absence() -> Patch:
    """Who does not answer, or has lost what it had, is taken to have had nothing."""
    original = LedgerReader.read_from

    async def read_from(self: Any, bookie: Any, entry_id: Any, *, fence: bool) -> Any:
        try:
            return await original(self, bookie, entry_id, fence=fence)
        except QuireError as error:
            if fence:
                raise NoSuchEntry("planted") from error
            raise

    return patch.object(LedgerReader, "read_from", read_from)


def recovery_stops_at_the_lac() -> Patch:
    """Recovery seals at the LAC that bookies know, without looking for what is behind it."""

    async def nothing(self: Any, entry_id: EntryId) -> None:
        return None

    return patch.object(recovery._Recovery, "_find", nothing)


@contextmanager
def no_clamp_to_the_fragment() -> Iterator[None]:
    """The new bookies of the last fragment know a lower LAC than where it begins, and that is believed (case 2)."""
    fence, write_back = recovery._Recovery._fence, recovery._Recovery._write_back

    async def fence_noting(self: Any, ensemble: Any) -> Any:
        found = await fence(self, ensemble)
        self.planted_start = found[0]
        return found

    async def write_back_unclamped(self: Any, start: EntryId, length: int | None) -> Any:
        return await write_back(self, self.planted_start, length if start == self.planted_start else None)

    with (
        patch.object(recovery._Recovery, "_fence", fence_noting),
        patch.object(recovery._Recovery, "_write_back", write_back_unclamped),
    ):
        yield


def publishes_ensembles_early() -> Patch:
    """A recovery stores who replaced whom before it is done: the next one asks bookies that know nothing."""
    original = recovery._Recovery._replace

    async def replace_and_publish(self: Any, replicas: Any) -> None:
        await original(self, replicas)
        fragments = self._stored.metadata.fragments
        stored = await self._client.ledgers_metadata.update(
            self._frozen,
            lambda metadata: replace(metadata, fragments=fragments) if metadata.state.name == "IN_RECOVERY" else None,
        )
        self._frozen = replace(self._frozen, version=stored.version)

    return patch.object(recovery._Recovery, "_replace", replace_and_publish)


def does_not_wait_for_write_backs() -> Patch:
    """The ledger is sealed behind entries that are on one bookie only."""
    original = recovery._Recovery._settle

    async def settle(self: Any, replicas: Any, *, in_flight_max: int) -> None:
        if in_flight_max > 0:
            await original(self, replicas, in_flight_max=in_flight_max)
        else:
            replicas.appends.confirmed = replicas.appends.pushed

    return patch.object(recovery._Recovery, "_settle", settle)


# --- Writing


def confirms_during_a_change() -> Patch:
    """An entry counts a bookie that the fragment, which is being published, does not list any more."""

    def suspend(self: Any) -> EntryId:
        return EntryId(self.confirmed + 1)

    return patch.object(PendingAppends, "suspend", suspend)


def counts_who_was_replaced() -> Patch:
    """What a replaced bookie acknowledged still counts for its successor, who has nothing."""
    return patch.object(PendingAppends, "replace", lambda self, positions: None)


def does_not_look_again_after_a_change() -> Patch:
    """Entries that were complete before a change are never confirmed after it (case 7): their appenders hang."""

    def resume(self: Any) -> EntryId:
        self._is_suspended = False
        return EntryId(self.confirmed)

    return patch.object(PendingAppends, "resume", resume)


def writer_seals_at_what_it_sent() -> Patch:
    """The writer seals its ledger behind entries that were never acknowledged."""
    return patch.object(LedgerWriter, "last_add_confirmed", property(lambda self: self.last_add_pushed))


def changes_ensembles_in_any_state() -> Patch:
    """A writer changes its bookies although the ledger is being recovered, or closed."""
    return patch.object(ensembles.EnsembleChange, "apply", lambda self, metadata, ledger_id: self.replace_in(metadata))


def metadata_without_compare_and_swap() -> Patch:
    """Whoever writes the metadata last is right."""
    return patch.object(Ledgers, "write", partialmethod(_write_anyway, Ledgers.write))


async def _write_anyway(
    self: Any, original: Any, ledger: Any, metadata: Any, *, expected: Any, guard: Any = None
) -> Any:
    return await original(self, ledger, metadata, expected=ANY_VERSION, guard=guard)


# --- Bookies


def acknowledges_before_the_flush() -> Patch:
    """A bookie acknowledges what a power cut takes from it: answers leave when the journal begins to write."""
    original = Journal._write_group

    async def write_group(self: Any, *args: Any) -> None:
        self._on_durable(self._commit.flushing)
        await original(self, *args)

    return patch.object(Journal, "_write_group", write_group)


def fence_answered_before_the_flush() -> Patch:
    """A bookie says that it is fenced, and a power cut makes it forget (case 11)."""
    original = BookieService.fence

    def fence(self: Any, connection: BookieConnection, ledger_id: Any, master_key: Any, then: Any) -> Any:
        with patch.object(BookieConnection, "when_durable", lambda self, ledger, number, then: then()):
            return original(self, connection, ledger_id, master_key, then)

    return patch.object(BookieService, "fence", fence)


def fence_lost_at_restart() -> Patch:
    """A bookie forgets a fence when it starts again."""
    original = storage_start._take_in

    def take_in(record: Any, table: Any, write_cache: Any) -> None:
        if record.entry_id != FENCE:
            original(record, table, write_cache)

    return patch.object(storage_start, "_take_in", take_in)


def fence_evicted_on_its_way_to_the_index() -> Patch:
    """While a checkpoint commits, a ledger leaves memory, and comes back from an index that does not know its fence."""
    original = LedgerTable.take_changes

    def take_changes(self: Any) -> Any:
        operations = original(self)
        self.end_commit()
        return operations

    return patch.object(LedgerTable, "take_changes", take_changes)


def damage_is_absence() -> Patch:
    """A bookie that cannot read an entry any more says that it never had it (case 10)."""
    original = BookieService.status_of

    def status_of(self: Any, answer: Any, *ids: Any) -> Status:
        return Status.ENOENTRY if isinstance(answer, Damaged) else original(self, answer, *ids)

    return patch.object(BookieService, "status_of", status_of)


def starts_on_an_empty_disk() -> Patch:
    """A bookie does not look at its cookie, and denies what its old disk had (case 12)."""

    async def prove(runtime: Any, folders: Any, bookies: Any, *, bookie_id: Any, instance_id: Any) -> Identity:
        is_new = not await runtime.disk.exists(f"{folders.data}/checkpoint")
        cookie = Cookie(bookie_id, folders.journals, (folders.data,), instance_id=instance_id)
        return Identity(cookie, is_new=is_new, was_unclean=False)

    return patch.object(bookie_module, "prove_identity", prove)


FLAWS = [
    Flaw(reads_that_do_not_fence, WORKLOADS["ledgers/missed_fence"], 120),
    Flaw(one_denial_is_absence, WORKLOADS["ledgers/late_adds"], 120),
    Flaw(errors_are_absence, WORKLOADS["ledgers/late_adds_and_a_crash"], 120),
    Flaw(recovery_stops_at_the_lac, WORKLOADS["ledgers/late_adds"], 120),
    Flaw(no_clamp_to_the_fragment, WORKLOADS["ledgers/new_fragment"], 120),
    Flaw(publishes_ensembles_early, WORKLOADS["ledgers/handovers"], 250),
    Flaw(does_not_wait_for_write_backs, WORKLOADS["ledgers/late_adds_and_a_crash"], 120),
    Flaw(confirms_during_a_change, WORKLOADS["ledgers/changes"], 120),
    Flaw(counts_who_was_replaced, WORKLOADS["ledgers/changes"], 120),
    Flaw(does_not_look_again_after_a_change, WORKLOADS["ledgers/late_change"], 120),
    Flaw(writer_seals_at_what_it_sent, WORKLOADS["ledgers/changes"], 120),
    Flaw(changes_ensembles_in_any_state, WORKLOADS["ledgers/changes"], 120),
    Flaw(metadata_without_compare_and_swap, WORKLOADS["ledgers/changes"], 120),
    Flaw(acknowledges_before_the_flush, WORKLOADS["ledgers/power"], 120),
    Flaw(fence_answered_before_the_flush, WORKLOADS["ledgers/amnesia"], 120),
    Flaw(fence_lost_at_restart, WORKLOADS["ledgers/amnesia"], 120),
    Flaw(fence_evicted_on_its_way_to_the_index, WORKLOADS["ledgers/compaction"], 120),
    Flaw(damage_is_absence, WORKLOADS["ledgers/bad_disk"], 120),
    Flaw(starts_on_an_empty_disk, WORKLOADS["ledgers/bad_disk"], 120),
]
