"""How much one writer may have in flight, in entries and bytes; whoever wants more waits, first come, first served."""

import asyncio
from collections import deque
from collections.abc import Callable

from quire.types import EntryId


class Window:
    """What is on its way, from the moment at which it is queued until it is confirmed."""

    def __init__(self, *, entries_max: int, bytes_max: int) -> None:
        self._entries_max, self._bytes_max = entries_max, bytes_max
        self.entries = 0
        self.bytes = 0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._is_awarded = False  # Somebody was woken and has not come yet: nobody may slip in before.

    @property
    def has_room(self) -> bool:
        return self.entries < self._entries_max and self.bytes < self._bytes_max

    def fit(self, sizes: list[int], begin: int) -> tuple[int, int]:
        """How many entries of these sizes, from `begin` on, may go now, and their bytes. At least one."""
        entries_left, bytes_left = self._entries_max - self.entries, self._bytes_max - self.bytes
        end = min(len(sizes), begin + max(1, entries_left))
        total = sum(sizes[begin:end])
        while end > begin + 1 and total - sizes[end - 1] >= bytes_left:  # The last one may stick out.
            end -= 1
            total -= sizes[end]
        return end - begin, total

    def take(self, entries: int, size_bytes: int) -> None:
        self.entries += entries
        self.bytes += size_bytes

    def give_back(self, entries: int, size_bytes: int) -> None:
        self.entries -= entries
        self.bytes -= size_bytes
        self._wake_next()

    async def wait(self) -> bool:
        """Return once it is one's turn, and whether that took a wait. Look again: a writer may have ended meanwhile.

        Whoever returns from here calls `pass_on`, whether it took something or not.
        """
        if self.has_room and not self._turns and not self._is_awarded:
            return False
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._is_awarded = False
                self._wake_next()  # Woken, and cancelled before it could run: the turn goes to the next one.
            raise
        finally:
            if turn in self._turns:
                self._turns.remove(turn)
        self._is_awarded = False
        return True

    def _wake_next(self) -> None:
        """Wake the first in line. It takes what it needs, and wakes the next one with `pass_on`: room may be left."""
        while self._turns and self.has_room and not self._is_awarded:
            turn = self._turns.popleft()
            if not turn.done():
                self._is_awarded = True
                turn.set_result(None)

    def pass_on(self) -> None:
        self._wake_next()

    def wake_all(self) -> None:
        """The writer is over."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_result(None)


class Waiters:
    """Who waits until which entry is confirmed. Entries are confirmed in order, so nobody is looked for."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[EntryId, EntryId, asyncio.Future[None]]] = deque()

    async def wait(self, first: EntryId, last: EntryId) -> None:
        """Return when `last` is confirmed. `first` is the first entry that whoever waits has to do with."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._waiting and self._waiting[-1][0] > last:  # Rare: entries of an application's own ids, for example.
            place = next(at for at, (waited, *_) in enumerate(self._waiting) if waited > last)
            self._waiting.insert(place, (last, first, done))
        else:
            self._waiting.append((last, first, done))
        await done

    def on_confirmed(self, confirmed: EntryId) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= confirmed:
            done = waiting.popleft()[2]
            if not done.done():
                done.set_result(None)

    def fail(self, error_of: Callable[[EntryId], Exception]) -> None:
        """Nothing more is confirmed. Each is told why, by its first entry: each has an error of its own, since an error
        that is raised keeps all that its raisers held.
        """
        for _, first, done in self._waiting:
            if not done.done():
                done.set_exception(error_of(first))
                done.exception()  # Whoever was cancelled does not look.
        self._waiting.clear()
