"""Copy entries of a fragment to other bookies: read as any reader does, written as a recovery does.

Copies are recovery adds, since the ledger may be fenced where they go. An entry keeps its payload and its length; its
LAC is what is known now. Every target has to acknowledge every entry: who comes short of one gets no place.

Invariants:
  AllOrError     `copy_entries` returns only if every target has acknowledged all that is its own.
  Bounded        at most one batch of entries is held and unanswered.
"""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from quire.codec.entry import Entry
from quire.codec.wire.codes import Status
from quire.codec.wire.v2 import RECOVERY_ADD
from quire.errors import QuireError
from quire.ledger.context import LedgerContext
from quire.ledger.reading.entries import EntryRange
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.writing.requests import PlainAdds
from quire.protocol.fragments import Span, entries_in
from quire.protocol.quorum import write_set
from quire.rpc import AddAnswers, BookieChannel
from quire.rpc.errors import status_error
from quire.types import BookieId, EntryId, LedgerId
from quire.values import dataclass

BATCH_BYTES: Final = 256 << 10
_BATCH_ENTRIES: Final = 32  # Where entries are striped and each one is a request of its own.
COPY_FLAGS: Final = RECOVERY_ADD


@dataclass(frozen=True, slots=True)
class Copied:
    """What went over the network for a fragment."""

    entries: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


async def copy_entries(
    client: LedgerContext,
    reader: LedgerReader,
    span: Span,
    targets: Mapping[int, BookieId],
    *,
    before_batch: Callable[[int], Awaitable[None]],
    on_batch: Callable[[Copied], None],
) -> None:
    """Give each target what belongs into its place. Raises what reading an entry, or a bookie, raises.

    `before_batch` is awaited before each batch with the bytes of the one before: it may wait, or raise to stop.
    """
    timeout_s = client.settings.read_timeout_s
    channels = {place: await client.pool.connect(bookie, 2, timeout_s=timeout_s) for place, bookie in targets.items()}
    adds = PlainAdds(reader.id, reader.codec.digest, reader.master_key, flags=COPY_FLAGS)
    await before_batch(0)
    async with aclosing(_readable(_batches(reader, span, sorted(targets)))) as batches:
        async for entries in batches:
            read = sum(len(entry.payload) for entry in entries)
            written = await _send(reader, entries, targets, channels, adds)
            on_batch(Copied(len(entries), read, written))
            await before_batch(written)


async def _readable(batches: AsyncGenerator[list[Entry]]) -> AsyncGenerator[list[Entry]]:
    """The same, with a fact in what they raise that tells it from an error of a target: nobody has an entry intact."""
    async with aclosing(batches):
        while True:
            try:
                entries = await anext(batches)
            except StopAsyncIteration:
                return
            except QuireError as error:
                error.facts["unreadable"] = True
                raise
            yield entries


async def _batches(reader: LedgerReader, span: Span, places: Sequence[int]) -> AsyncGenerator[list[Entry]]:
    """The entries that belong into one of the places, in order."""
    quorum = reader.metadata.metadata.quorum
    if span.is_empty:
        return
    if quorum.ensemble == quorum.write:
        reader.limit_read_ahead(BATCH_BYTES)
        async with aclosing(EntryRange(reader, span.first, span.last).windows()) as windows:
            async for entries in windows:
                yield entries
        return
    wanted = entries_in(span, places, quorum)
    while batch := list(itertools.islice(wanted, _BATCH_ENTRIES)):
        yield list(await asyncio.gather(*map(reader.read_entry, batch)))


async def _send(
    reader: LedgerReader,
    entries: Sequence[Entry],
    targets: Mapping[int, BookieId],
    channels: Mapping[int, BookieChannel],
    adds: PlainAdds,
) -> int:
    """Returns the payload bytes that were sent."""
    quorum, lac = reader.metadata.metadata.quorum, reader.last_add_confirmed
    parts: dict[int, list[bytes]] = {place: [] for place in targets}
    own: dict[int, list[EntryId]] = {place: [] for place in targets}
    sent = 0
    for entry in entries:
        length = entry.length - len(entry.payload)
        (head,), _ = adds.heads(entry.entry_id, [entry.payload], lac=lac, length=length)
        for place in write_set(entry.entry_id, quorum):
            if place in parts:
                parts[place] += (head, entry.payload)
                own[place].append(entry.entry_id)
                sent += len(entry.payload)
    copies = [_Copy(reader.id, bookie, own[place]) for place, bookie in targets.items()]
    for place, copy in zip(targets, copies, strict=True):
        try:
            if own[place]:
                adds.send(channels[place], own[place], parts[place], copy)
        except QuireError as error:
            copy.fail(error)
    done = await asyncio.gather(*(copy.stored for copy in copies), return_exceptions=True)
    for bookie, outcome in zip(targets.values(), done, strict=True):
        if isinstance(outcome, QuireError):
            reader.client.on_bookie_error(bookie, outcome)
        if isinstance(outcome, BaseException):
            raise outcome
    return sent


class _Copy:
    """A batch on its way to one bookie. An `AddSink`."""

    def __init__(self, ledger_id: LedgerId, bookie: BookieId, entry_ids: Sequence[EntryId]) -> None:
        self._ledger_id, self._bookie, self._missing = ledger_id, bookie, set(entry_ids)
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not entry_ids:
            self.stored.set_result(None)

    def on_add_answers(self, answers: AddAnswers) -> None:
        for status, entry_ids in answers:
            if status is not Status.EOK:
                self.fail(status_error(status, bookie=self._bookie, ledger_id=self._ledger_id, entry_id=entry_ids[0]))
            self._missing.difference_update(entry_ids)
        if not self._missing and not self.stored.done():
            self.stored.set_result(None)

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        self.fail(error)

    def fail(self, error: QuireError) -> None:
        if not self.stored.done():
            self.stored.set_exception(error)
