"""Reads that have to wait for the disk: one after the other for each ledger, many ledgers side by side.

Whoever reads a ledger in order asks for many entries at once, and the first one brings the others along from the disk.
So the reads of one ledger wait for one another, and most find their entry in the read cache when it is their turn.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from quire.bookie.ledger_storage import Absence, LedgerStorage
from quire.types import EntryId, LedgerId

_LEDGERS_MAX: Final = 32  # Ledgers that wait for the disk at the same time.
_QUEUED_MAX: Final = 20_000

Answer = bytes | Absence | Exception
Reply = Callable[[Answer], None]


class ReadQueue:
    """Asks the storage, and tells each who asked. `spawn` starts a task that ends with the bookie."""

    def __init__(self, storage: LedgerStorage, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._storage, self._spawn = storage, spawn
        self._queues: dict[LedgerId, deque[tuple[EntryId, Reply]]] = {}
        self._waiting: deque[LedgerId] = deque()  # Ledgers that nobody reads for yet.
        self._running = 0
        self.queued = 0

    def ask(self, ledger_id: LedgerId, entry_id: EntryId, reply: Reply) -> bool:
        """Have `reply` told what the entry is, or why there is none. False if too many wait already."""
        if self.queued >= _QUEUED_MAX:
            return False
        self.queued += 1
        queue = self._queues.get(ledger_id)
        if queue is not None:
            queue.append((entry_id, reply))
            return True
        self._queues[ledger_id] = deque([(entry_id, reply)])
        if self._running < _LEDGERS_MAX:
            self._running += 1
            self._spawn(self._serve(ledger_id))
        else:
            self._waiting.append(ledger_id)
        return True

    async def _serve(self, first: LedgerId) -> None:
        ledger_id: LedgerId | None = first
        try:
            while ledger_id is not None:
                await self._serve_ledger(ledger_id)
                ledger_id = self._waiting.popleft() if self._waiting else None
        finally:
            self._running -= 1

    async def _serve_ledger(self, ledger_id: LedgerId) -> None:
        queue, storage = self._queues[ledger_id], self._storage
        while queue:
            entry_id, reply = queue.popleft()
            self.queued -= 1
            answer: Answer | None = storage.cached(ledger_id, entry_id)
            if answer is None:
                try:
                    answer = await storage.read(ledger_id, entry_id)
                except Exception as error:  # Told to whoever asked, as the status it deserves.
                    answer = error
            try:
                reply(answer)
            except Exception as error:  # A bug, and one request's only: whoever waits behind it is still answered.
                asyncio.get_running_loop().call_exception_handler(
                    {"message": "the answer to a read raised", "exception": error}
                )
        del self._queues[ledger_id]
