"""Send a ledger's entries to the bookies of its ensemble, and count who has them.

What goes to a bookie goes through one channel, in order; answers come back in runs. A bookie that fails is reported and
gets nothing more; with `resume` another takes its place, and gets all that is in flight. Which bookie that is, and who
has to agree, is for the owner to say: a writer publishes each change, a recovery only at its end.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from quire.codec.digest import Buffer
from quire.codec.wire.codes import Status
from quire.errors import BookieUnavailable, QuireError, Unavailable
from quire.protocol.appends import PendingAppends
from quire.protocol.quorum import write_sets
from quire.rpc.errors import status_error
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId, Quorum

if TYPE_CHECKING:
    from quire.ledger.pool import BookiePool
    from quire.rpc import BookieChannel

_FINAL: Final = frozenset({Status.EFENCED, Status.EUA})  # No other bookie would answer differently.

Frame = tuple[Buffer, ...]


class Replica:
    """One bookie in one place of the ensemble: hears of the adds that were sent to it. An `AddSink`."""

    __slots__ = ("_owner", "bookie", "is_current", "position")

    def __init__(self, owner: "Replicas", position: int, bookie: BookieId) -> None:
        self._owner, self.position, self.bookie = owner, position, bookie
        self.is_current = True  # False once it failed or was replaced: its answers count no more.

    def on_add_answers(self, channel: "BookieChannel", answers: list[tuple[EntryId, Status]]) -> None:
        if not self.is_current:
            return
        stored = [entry_id for entry_id, status in answers if status is Status.EOK]
        if stored:
            self._owner.on_stored(self.position, stored)
        if len(stored) < len(answers):
            entry_id, status = next(each for each in answers if each[1] is not Status.EOK)
            self._owner.on_refused(self, entry_id, status)

    def on_add_lost(self, channel: "BookieChannel", entry_ids: list[EntryId], error: QuireError) -> None:
        if self.is_current:
            self._owner.on_lost(self, error)


class Replicas:
    """The ensemble of one ledger, being written to.

    `on_confirmed` is told how far entries are confirmed; `on_failed` which place of the ensemble has to be filled anew;
    `on_final` that no bookie will take anything any more.
    """

    def __init__(
        self,
        pool: "BookiePool",
        ledger_id: LedgerId,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        *,
        confirmed: EntryId = NO_ENTRY,
        unsent_bytes_max: int,
        on_confirmed: Callable[[EntryId], None],
        on_failed: Callable[[int, BookieId, QuireError], None],
        on_final: Callable[[QuireError], None],
    ) -> None:
        self._pool, self._ledger_id, self._quorum = pool, ledger_id, quorum
        self.appends = PendingAppends(quorum, confirmed=confirmed)
        self._replicas = [Replica(self, position, bookie) for position, bookie in enumerate(ensemble)]
        self._unsent_bytes_max = unsent_bytes_max
        self._on_confirmed, self._on_failed, self._on_final = on_confirmed, on_failed, on_final
        self._frames: deque[Frame] = deque()  # Of the entries behind `appends.confirmed`.
        self._write_sets = write_sets(quorum)
        self._is_everyone = quorum.ensemble == quorum.write

    @property
    def ensemble(self) -> tuple[BookieId, ...]:
        return tuple(replica.bookie for replica in self._replicas)

    def send(self, first: EntryId, frames: Sequence[Frame]) -> None:
        """Send new entries, the frames of which are encoded, to all who should have them."""
        self._frames.extend(frames)
        if self._is_everyone:
            parts = [part for frame in frames for part in frame]
            entry_ids = range(first, first + len(frames))
            for replica in self._replicas:
                self._send(replica, parts, entry_ids)  # type: ignore[arg-type]
            return
        for position, replica in enumerate(self._replicas):
            mine = [
                place
                for place in range(len(frames))
                if position in self._write_sets[(first + place) % self._quorum.ensemble]
            ]
            if mine:
                parts = [part for place in mine for part in frames[place]]
                self._send(replica, parts, [EntryId(first + place) for place in mine])

    def _send(self, replica: Replica, parts: list[Buffer], entry_ids: Sequence[EntryId]) -> None:
        if not replica.is_current:
            return
        channel = self._pool.channel(replica.bookie, 2)
        try:
            if channel is None:
                raise BookieUnavailable(f"there is no connection to bookie {replica.bookie}", bookie=replica.bookie)
            channel.send_adds(self._ledger_id, parts, entry_ids, replica)
        except Unavailable as error:
            self.on_lost(replica, error)
            return
        if channel.unsent_bytes > self._unsent_bytes_max:
            problem = f"bookie {replica.bookie} does not keep up: {channel.unsent_bytes} bytes wait for it"
            self.on_lost(replica, BookieUnavailable(problem, bookie=replica.bookie))

    # --- What replicas report

    def on_stored(self, position: int, entry_ids: list[EntryId]) -> None:
        before = self.appends.confirmed
        self._confirm(before, self.appends.on_acks(position, entry_ids))

    def _confirm(self, before: EntryId, confirmed: EntryId) -> None:
        if confirmed > before:
            frames = self._frames
            for _ in range(confirmed - before):
                frames.popleft()
            self._on_confirmed(confirmed)

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
            self._replicas[position] = Replica(self, position, bookie)
        before = self.appends.confirmed
        confirmed = self.appends.resume(bookies)
        self._confirm(before, confirmed)
        for position in bookies:
            missing = self.appends.missing(position)
            if missing:
                base = self.appends.confirmed + 1
                parts = [part for entry_id in missing for part in self._frames[entry_id - base]]
                self._send(self._replicas[position], parts, missing)

    def stop(self) -> None:
        """Nothing is sent and nothing is confirmed any more."""
        self.appends.give_up()
        for replica in self._replicas:
            replica.is_current = False
        self._frames.clear()
