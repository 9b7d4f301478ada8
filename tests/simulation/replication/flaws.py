"""Bugs that repairs have had, or could have, each as a patch around a simulation. Numbers of cases are those of the
historic bugs in docs/reliability.md. Nothing of this is ever part of what is shipped."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quire.bookie import service
from quire.bookie.compaction import Compactor
from quire.bookie.entry_log import EntryLogs
from quire.bookie.index import PutTombstone
from quire.bookie.integrity import Limbo
from quire.bookie.ledger_table import LedgerTable
from quire.codec.wire.codes import Status
from quire.ledger.repair import fragment_check, fragment_copy
from quire.metadata import ANY_VERSION, MetadataStore
from quire.metadata.underreplication import Underreplication
from quire.protocol import fragments, repair
from quire.protocol.fencing import Refusal
from quire.replication import worker
from quire.replication.worker import Worker
from quire.types import EntryId, LedgerState
from tests.simulation.harness import Flaw, Patch
from tests.simulation.replication.workloads import WORKLOADS


@contextmanager
def repairs_the_last_fragment_of_open_ledgers() -> Iterator[None]:
    """The last ensemble of an open ledger is changed as if it were settled (case 15)."""
    spans_of, exchanged = fragments.spans_of, repair.exchanged

    def all_closed(metadata: Any, lac: Any) -> Any:
        return [replace(span, is_closed=True) for span in spans_of(metadata, lac)]

    def in_any_state(metadata: Any, first: Any, exchanges: Any) -> Any:
        closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=max(metadata.last_entry_id, EntryId(-1)))
        changed = exchanged(closed, first, exchanges)
        return None if changed is None else replace(metadata, fragments=changed.fragments)

    with patch.object(fragment_check, "spans_of", all_closed), patch.object(worker, "exchanged", in_any_state):
        yield


@contextmanager
def copies_up_to_what_bookies_know() -> Iterator[None]:
    """The last fragment but one is copied as far as bookies know of a LAC, which is less than all of it (case 16)."""
    spans_of, look = fragments.spans_of, Worker._look

    def cut_short(metadata: Any, lac: Any) -> Any:
        spans = spans_of(metadata, lac)
        if metadata.state is LedgerState.OPEN and len(spans) > 1:
            last = max(EntryId(spans[-2].first - 1), min(spans[-2].last, told.get("lac", lac)))
            spans[-2] = replace(spans[-2], last=last)
        return spans

    told: dict[str, EntryId] = {}

    async def noting(self: Any, ledger_id: Any) -> Any:
        found = await look(self, ledger_id)
        reader = found[0]
        if not reader.is_closed:
            lacs = [EntryId(-1)]
            for bookie in reader.metadata.metadata.fragments[-1].bookies:
                try:
                    lacs.append((await reader.read_from(bookie, EntryId(-1), fence=False)).lac)
                except Exception as error:  # Whoever does not answer knows nothing.
                    del error
            told["lac"] = max(lacs)
        return found

    with patch.object(fragment_check, "spans_of", cut_short), patch.object(Worker, "_look", noting):
        yield


def copies_as_plain_adds() -> Patch:
    """Copies are sent as a writer sends its entries: who is fenced refuses them (case 17)."""
    return patch.object(fragment_copy, "COPY_FLAGS", 0)


@contextmanager
def forgets_fences_with_the_ledger() -> Iterator[None]:
    """A bookie that drops a ledger forgets that it was fenced, and takes what an old writer sends (case 18)."""
    begin_drop = LedgerTable.begin_drop

    def without_tombstones(self: Any, *args: Any, **named: Any) -> Any:
        operations = begin_drop(self, *args, **named)
        self._dropping = dict.fromkeys(self._dropping, False)
        return [each for each in operations if not isinstance(each, PutTombstone)]

    with patch.object(LedgerTable, "begin_drop", without_tombstones):
        yield


def buried_ledgers_stay_buried() -> Patch:
    """A bookie that dropped a fenced ledger refuses copies, too (case 18)."""
    create = LedgerTable.create

    def never_revived(self: Any, ledger_id: Any, master_key: Any, *, revive: bool) -> Any:
        return create(self, ledger_id, master_key, revive=False)

    return patch.object(LedgerTable, "create", never_revived)


def asks_for_the_first_entry_of_every_fragment() -> Patch:
    """An empty last fragment is taken for one that lacks its first entry, which nobody ever had (case 20)."""
    sample = fragments.sample

    def with_first(span: Any, position: int, quorum: Any, percentage: float) -> Any:
        return iter(list(sample(span, position, quorum, percentage)) or [span.first])

    return patch.object(fragment_check, "sample", with_first)


@contextmanager
def believes_damaged_logs() -> Iterator[None]:
    """A log whose own word on what it holds is damaged is taken to hold nothing, and deleted without asking the index
    (case 22)."""
    ledgers_in = EntryLogs.ledgers_in

    async def short_answer(self: Any, log_id: Any) -> Any:
        is_growing = any(each.is_growing for each in self.usage() if each.log_id == log_id)
        return await ledgers_in(self, log_id) if is_growing or await self.has_footer(log_id) else {}

    async def no_pointers(self: Any, log_ids: Any) -> Any:
        return Counter()

    with patch.object(EntryLogs, "ledgers_in", short_answer), patch.object(Compactor, "_pointers", no_pointers):
        yield


def metadata_before_copies() -> Patch:
    """The metadata names the new bookie at once, and a process that dies then leaves it with nothing."""

    async def nothing(*args: Any, **named: Any) -> None:
        return None

    return patch.object(worker, "copy_entries", nothing)


def removes_marks_of_any_version() -> Patch:
    """A mark that was written anew while its ledger was looked at is removed with the old one."""
    finish = Underreplication.finish

    async def any_version(self: Any, held: Any) -> bool:
        return await finish(self, replace(held, version=ANY_VERSION))

    return patch.object(Underreplication, "finish", any_version)


def does_not_look_again() -> Patch:
    """What the mark says is believed: a bookie that came back is replaced all the same."""
    check = Worker._check

    async def all_bad(self: Any, reader: Any, listing: Any) -> Any:
        mark = await self._marks.read_mark(reader.id)
        gone = set(mark.replicas) if mark is not None else set()
        listing = replace(listing, writable=listing.writable - gone, readonly=listing.readonly - gone)
        return await check(self, reader, listing)

    return patch.object(Worker, "_check", all_bad)


def leaves_bad_copies_of_open_ledgers_alone() -> Patch:
    """An open ledger is recovered only if a bookie takes no entries: a copy that went bad on one that does stays so."""
    return patch.object(worker, "may_close", lambda *_: False)


def looks_without_settling() -> Patch:
    """After a lost answer the metadata are only read. A lock that was not found then is created later, and stays."""

    async def at_once(self: Any) -> Any:
        return self._open_driver()

    return patch.object(MetadataStore, "_settled_driver", at_once)


def limbo_ends_ledgers() -> Patch:
    """A bookie that may have lost a fence answers as one that was fenced, and ends ledgers that nobody recovers."""
    return patch.dict(service._OF_REFUSAL, {Refusal.IN_LIMBO: Status.EFENCED})


def samples_of_ledgers_in_limbo() -> Patch:
    """Of a bookie that lost some entries the first and the last one are looked at, and a hole between them stays."""

    async def never(reader: Any, bookie: Any) -> bool:
        return False

    return patch.object(fragment_check, "_has_lost_some", never)


def leaves_limbo_without_a_look() -> Patch:
    """A bookie that lost entries says after a while that they never were."""

    async def always(self: Any, ledger_id: Any, metadata: Any) -> bool:
        return True

    return patch.object(Limbo, "_has_all", always)


FLAWS = [
    Flaw(repairs_the_last_fragment_of_open_ledgers, WORKLOADS["replication/idle_writer"], 30),
    Flaw(copies_up_to_what_bookies_know, WORKLOADS["replication/new_fragment"], 60),
    Flaw(copies_as_plain_adds, WORKLOADS["replication/fenced_targets"], 30),
    Flaw(forgets_fences_with_the_ledger, WORKLOADS["replication/zombie"], 30),
    Flaw(buried_ledgers_stay_buried, WORKLOADS["replication/buried_before"], 30),
    Flaw(asks_for_the_first_entry_of_every_fragment, WORKLOADS["replication/empty_fragment"], 30),
    Flaw(believes_damaged_logs, WORKLOADS["replication/damaged_logs"], 30),
    Flaw(metadata_before_copies, WORKLOADS["replication/one_after_the_other"], 30),
    Flaw(removes_marks_of_any_version, WORKLOADS["replication/marked_again"], 60),
    Flaw(does_not_look_again, WORKLOADS["replication/came_back"], 30),
    Flaw(looks_without_settling, WORKLOADS["replication/late_writes"], 60),
    Flaw(leaves_bad_copies_of_open_ledgers_alone, WORKLOADS["replication/damaged_open"], 30),
    Flaw(limbo_ends_ledgers, WORKLOADS["replication/limbo"], 30),
    Flaw(samples_of_ledgers_in_limbo, WORKLOADS["replication/limbo"], 30),
    Flaw(leaves_limbo_without_a_look, WORKLOADS["replication/limbo"], 30),
]
