"""The metadata of one ledger, followed while its reader lives: new bookies, and the end of the ledger.

An outage of the metadata store does not disturb the reader: what is known stays, and the watch is taken up again as
soon as the store can be reached.
"""

import asyncio
from typing import TYPE_CHECKING, Final

from quire.errors import NoSuchLedger, QuireError, StoreClosed
from quire.telemetry.events import logger

if TYPE_CHECKING:
    from quire.ledger.reader import LedgerReader

_LOG = logger("ledger")

_RETRY_S_MIN: Final = 0.1
_RETRY_S_MAX: Final = 5.0


class MetadataWatch:
    """Hands newer metadata to its reader, from `start` to `stop`."""

    def __init__(self, reader: "LedgerReader") -> None:
        self._reader = reader
        self._task: asyncio.Task[None] | None = None
        self.is_up = False  # Whether a change would be noticed now.

    def start(self, *, keep: bool) -> None:
        """With `keep` the watch goes on when the ledger is closed: its entries may be moved to other bookies."""
        self._task = asyncio.create_task(self._run(keep), name=f"metadata of ledger {self._reader.id}")

    async def stop(self) -> None:
        """Return when nothing of it runs any more. Raises the bug that ended it, if one did."""
        task, self._task = self._task, None
        if task is None:
            return
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()

    async def _run(self, keep: bool) -> None:
        reader, retry_s = self._reader, _RETRY_S_MIN
        ledgers = reader.client.ledgers_metadata
        while True:
            try:
                async with ledgers.watch(reader.id) as watch:
                    while True:
                        reader.adopt(await ledgers.read(reader.id))
                        if reader.is_closed and not keep:
                            return
                        self.is_up, retry_s = True, _RETRY_S_MIN
                        await watch.wait_changed()
            except NoSuchLedger as error:
                reader.gone = error
                reader.tell_news()
                return
            except StoreClosed:
                return
            except QuireError as error:
                if self.is_up or retry_s == _RETRY_S_MIN:
                    _LOG.warning("ledger.watch_failed", ledger_id=reader.id, error=str(error))
            finally:
                self.is_up = False
            await reader.clock.sleep(retry_s)
            retry_s = min(2 * retry_s, _RETRY_S_MAX)
