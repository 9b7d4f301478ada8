"""Send a ledger's entries to the bookies of its ensemble, and count who has them.

What goes to a bookie goes through one channel, in order; answers come back in runs. A bookie that fails is reported and
gets nothing more; with `resume` another takes its place, and gets all that is in flight. Which bookie that is, and who
has to agree, is for the owner to say: a writer publishes each change, a recovery only at its end.

A bookie that is slower than the others does not hold them up. What it has not taken in waits in its channel: when that
is more than `lag_bytes_max` beyond what is in flight anyway, the bookie counts as failed.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from quire.codec.wire.codes import Status
from quire.errors import BookieUnavailable, QuireError, Unavailable
from quire.ledger.writing.requests import AddRequests
from quire.protocol.appends import PendingAppends
from quire.protocol.quorum import write_sets
from quire.rpc.errors import status_error
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId, Quorum

if TYPE_CHECKING:
    from quire.ledger.bookies.pool import BookiePool
    from quire.rpc import AddAnswers, BookieChannel

_FINAL: Final = frozenset({Status.EFENCED, Status.EUA})  # No other bookie would answer differently.


class Replica:
    """One bookie in one place of the ensemble: hears of the adds that were sent to it. An `AddSink`."""

    __slots__ = ("_owner", "bookie", "channel", "is_current", "position")

    def __init__(self, owner: "Replicas", position: int, bookie: BookieId) -> None:
        self._owner, self.position, self.bookie = owner, position, bookie
        self.channel: BookieChannel | None = None  # The only one that will do, if it has to be the same one always.
        self.is_current = True  # False once it failed or was replaced: its answers count no more.

    def on_add_answers(self, answers: "AddAnswers") -> None:
        for status, entry_ids in answers:
            if not self.is_current:
                return
            if status is Status.EOK:
                self._owner.on_stored(self.position, entry_ids)
            else:
                self._owner.on_refused(self, entry_ids[0], status)

    def on_add_lost(self, entry_ids: list[EntryId], error: QuireError) -> None:
        if self.is_current:
            self._owner.on_lost(self, error)


class Run:
    """Entries that were sent together, kept until all of them are confirmed."""

    __slots__ = ("first", "heads", "last", "length_before", "payloads", "sent_s")

    def __init__(
        self, first: EntryId, heads: list[bytes], payloads: Sequence[bytes], *, length_before: int, sent_s: float
    ) -> None:
        self.first, self.last = first, EntryId(first + len(heads) - 1)
        self.heads, self.payloads = heads, payloads
        self.length_before, self.sent_s = length_before, sent_s

    def length_at(self, entry_id: EntryId) -> int:
        """The ledger's length after one of these entries, or before the first of them."""
        return self.length_before + sum(map(len, self.payloads[: entry_id - self.first + 1]))


class Replicas:
    """The ensemble of one ledger, being written to.

    `on_confirmed` is told how far entries are confirmed, and which runs are over with it; `on_failed` which place of
    the ensemble has to be filled anew; `on_final` that no bookie will take anything any more.
    """

    def __init__(
        self,
        pool: "BookiePool",
        ledger_id: LedgerId,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        requests: AddRequests,
        *,
        confirmed: EntryId = NO_ENTRY,
        lag_bytes_max: int,
        on_confirmed: Callable[[EntryId, list[Run]], None],
        on_failed: Callable[[int, BookieId, QuireError], None],
        on_final: Callable[[QuireError], None],
    ) -> None:
        self._pool, self._ledger_id, self._quorum, self._requests = pool, ledger_id, quorum, requests
        self.appends = PendingAppends(quorum, confirmed=confirmed)
        self._replicas = [Replica(self, position, bookie) for position, bookie in enumerate(ensemble)]
        self._lag = _Lag(lag_bytes_max * quorum.ensemble // quorum.write)  # Counted over all entries, not one's own.
        self._on_confirmed, self._on_failed, self._on_final = on_confirmed, on_failed, on_final
        self.runs: deque[Run] = deque()  # What is in flight; the first may be confirmed in part.
        self.lacking: dict[BookieId, None] = {}  # Who failed before it had everything that is confirmed.
        self._write_sets = write_sets(quorum)
        self._is_everyone = quorum.ensemble == quorum.write

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(replica.bookie for replica in self._replicas)

    def crowded(self) -> "BookieChannel | None":
        """A channel to wait for before more is sent: so many are full that entries would find no ack quorum at once."""
        spare = 0 if self._requests.needs_one_life else self._quorum.write - self._quorum.ack
        for replica in self._replicas:
            channel = self._pool.channel(replica.bookie, self._requests.version) if replica.is_current else None
            if channel is not None and not channel.is_writable:
                if spare == 0:
                    return channel
                spare -= 1
        return None

    def send(self, payloads: Sequence[bytes], *, lac: EntryId, length: int, now_s: float) -> int:
        """Give ids to new entries and send them to all who should have them. Returns the ledger's length after them."""
        first = self.appends.push(len(payloads))
        heads, length_after = self._requests.heads(first, payloads, lac=lac, length=length)
        run = Run(first, heads, payloads, length_before=length, sent_s=now_s)
        self.runs.append(run)
        self._lag.on_sent(run.last, length_after)
        if self._is_everyone:
            parts = self._requests.pack([part for pair in zip(heads, payloads, strict=True) for part in pair])
            entry_ids = tuple(map(EntryId, range(first, run.last + 1)))
            for replica in self._replicas:
                self._send(replica, parts, entry_ids)
        else:
            for position, replica in enumerate(self._replicas):
                mine = [
                    EntryId(entry_id)
                    for entry_id in range(first, run.last + 1)
                    if position in self._write_sets[entry_id % self._quorum.ensemble]
                ]
                self._send(replica, self._requests.pack(self._parts(mine, [run])), mine)
        return length_after

    def _parts(self, entry_ids: Sequence[EntryId], runs: Sequence[Run]) -> list[bytes]:
        """Head and payload of each of these entries, which ascend, as do the runs that they are in."""
        parts: list[bytes] = []
        rest = iter(runs)
        run = next(rest, None)
        for entry_id in entry_ids:
            while run is not None and entry_id > run.last:
                run = next(rest, None)
            if run is not None:
                parts += (run.heads[entry_id - run.first], run.payloads[entry_id - run.first])
        return parts

    def _send(self, replica: Replica, parts: list[bytes], entry_ids: Sequence[EntryId]) -> None:
        if not replica.is_current or not entry_ids:
            return
        bookie = replica.bookie
        try:
            channel = self._pool.channel(bookie, self._requests.version)
            if channel is None:
                raise BookieUnavailable(f"there is no connection to bookie {bookie}", bookie=bookie)
            if self._requests.needs_one_life:
                self._bind(replica, channel)
            first_missing = self.appends.first_missing(replica.position)
            lag_bytes = self._lag.bytes_between(first_missing, self.appends.confirmed)
            if lag_bytes > self._lag.bytes_max and not self._requests.needs_one_life:  # That one is waited for.
                raise BookieUnavailable(f"bookie {bookie} is {lag_bytes} bytes behind the others", bookie=bookie)
            self._requests.send(channel, entry_ids, parts, replica)
        except Unavailable as error:
            self.on_lost(replica, error)

    def _bind(self, replica: Replica, channel: "BookieChannel") -> None:
        if replica.channel is None:
            replica.channel = channel
        elif replica.channel is not channel:
            bookie = replica.bookie
            raise BookieUnavailable(
                f"bookie {bookie} was lost for a while: what it had acknowledged may be, too", bookie=bookie
            )

    async def lasting_channels(self, *, timeout_s: float) -> list["BookieChannel"]:
        """The channels on which bookies acknowledged all they did. Raises `BookieUnavailable` if one was lost."""
        channels: list[BookieChannel] = []
        for replica in self._replicas:
            channel = await self._pool.connect(replica.bookie, self._requests.version, timeout_s=timeout_s)
            self._bind(replica, channel)
            channels.append(channel)
        return channels

    # --- What replicas report

    def on_stored(self, position: int, entry_ids: Sequence[EntryId]) -> None:
        before = self.appends.confirmed
        self._confirm(before, self.appends.on_acks(position, entry_ids))

    def _confirm(self, before: EntryId, confirmed: EntryId) -> None:
        if confirmed > before:
            done: list[Run] = []
            while self.runs and self.runs[0].last <= confirmed:
                done.append(self.runs.popleft())
            behind = (self.appends.first_missing(each.position) for each in self._replicas if each.is_current)
            self._lag.forget_before(min(behind, default=EntryId(confirmed + 1)))
            self._on_confirmed(confirmed, done)

    def on_refused(self, replica: Replica, entry_id: EntryId, status: Status) -> None:
        error = status_error(status, bookie=replica.bookie, ledger_id=self._ledger_id, entry_id=entry_id)
        if status in _FINAL:
            self._on_final(error)
        else:
            self.on_lost(replica, error)

    def on_lost(self, replica: Replica, error: QuireError) -> None:
        """A bookie failed: nothing of it counts from now on, and its place has to be filled."""
        if replica.is_current:
            replica.is_current = False
            self._on_failed(replica.position, replica.bookie, error)

    # --- Ensemble changes

    def suspend(self) -> EntryId:
        """Confirm nothing while the ensemble changes. Returns the first entry of the new fragment."""
        return self.appends.suspend()

    def resume(self, bookies: Mapping[int, BookieId]) -> None:
        """These places have new bookies: they get all that is in flight. Then confirming goes on."""
        for position, bookie in bookies.items():
            self._replicas[position].is_current = False
            self._note_lacking(position)
            self._replicas[position] = Replica(self, position, bookie)
        self.appends.replace(bookies)
        for position in bookies:  # Before anything is confirmed: what is confirmed is not sent any more.
            missing = self.appends.missing(position)
            self._send(self._replicas[position], self._requests.pack(self._parts(missing, self.runs)), missing)
        if all(replica.is_current for position, replica in enumerate(self._replicas) if position in bookies):
            before = self.appends.confirmed
            self._confirm(before, self.appends.resume())

    def _note_lacking(self, position: int) -> None:
        if self.appends.first_missing(position) <= self.appends.confirmed:
            self.lacking[self._replicas[position].bookie] = None

    def stop(self) -> None:
        """Nothing is sent and nothing is confirmed any more. Who is only slow gets what was sent to it."""
        self.appends.give_up()
        for replica in self._replicas:
            if not replica.is_current:
                self._note_lacking(replica.position)
            replica.is_current = False
        self.runs.clear()


class _Lag:
    """How many bytes lie between two entries, to the precision of a run."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._last_ids: list[EntryId] = []  # Of each run, ascending, from the slowest bookie's next entry on,
        self._lengths: list[int] = []  # and the ledger's length after it.

    def on_sent(self, last: EntryId, length: int) -> None:
        self._last_ids.append(last)
        self._lengths.append(length)

    def bytes_between(self, first: EntryId, last: EntryId) -> int:
        if first > last or not self._last_ids:
            return 0
        begin, end = bisect_left(self._last_ids, first), bisect_left(self._last_ids, last)
        return self._lengths[min(end, len(self._lengths) - 1)] - self._lengths[min(begin, len(self._lengths) - 1)]

    def forget_before(self, first: EntryId) -> None:
        done = bisect_left(self._last_ids, first)
        if done > 64 and 2 * done > len(self._last_ids):  # Seldom, and then much: to cut a list off moves the rest.
            del self._last_ids[:done], self._lengths[:done]
