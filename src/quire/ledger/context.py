"""What all handles of one client of ledgers share: connections, placement, metadata, metrics, settings."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

from quire.errors import QuireError
from quire.ledger.bookies.placing import Placing
from quire.ledger.bookies.pool import BookiePool
from quire.ledger.damage import DamagedCopies
from quire.ledger.metrics import LedgerMetrics
from quire.ledger.settings import LedgerSettings
from quire.metadata import Cluster
from quire.runtime import Runtime
from quire.telemetry.events import logger
from quire.types import BookieId, LedgerId, LedgerMetadata

_log = logger("ledger")
_MARK_WITHIN_S: Final = 2.0
"""A ledger that could not be marked is found by a check of all ledgers, a week later at most."""


class LedgerContext:
    """A connection to the ledgers of one cluster, for the parts of its client."""

    def __init__(
        self,
        runtime: Runtime,
        cluster: Cluster,
        pool: BookiePool,
        placing: Placing,
        metrics: LedgerMetrics,
        settings: LedgerSettings,
    ) -> None:
        self.runtime, self.clock, self._placing = runtime, runtime.clock, placing
        self._store, self._root = cluster.store, cluster.uri.root
        self.pool, self.settings = pool, settings
        self.metrics = metrics
        self.damage = DamagedCopies(metrics.damaged_copies, runtime.clock.monotonic)
        self.ledgers_metadata = cluster.ledgers

    async def mark_lacking(self, ledger_id: LedgerId, bookies: Collection[BookieId]) -> None:
        """Have autorecovery copy what these bookies lack of a ledger, instead of finding it by itself some day. Best
        effort: what keeps us from it is logged, and not raised.
        """
        if not bookies:
            return
        from quire.metadata.underreplication import Underreplication  # Most programs never need it.

        marks = Underreplication(self._store, self._root, self.runtime, "")
        try:
            async with asyncio.timeout(_MARK_WITHIN_S):
                if await marks.is_enabled():
                    await marks.prepare()
                    await marks.mark(ledger_id, sorted(bookies))
                    _log.info("ledger.marked", ledger_id=ledger_id, missing=sorted(bookies))
        except (QuireError, TimeoutError) as error:
            _log.warning("ledger.not_marked", ledger_id=ledger_id, missing=sorted(bookies), error=repr(error))

    def replacement(
        self, metadata: LedgerMetadata, ensemble: tuple[BookieId, ...], position: int, exclude: frozenset[BookieId]
    ) -> BookieId:
        """Who takes a place in an ensemble. Raises `NotEnoughBookies`."""
        return self._placing.replacement(metadata, ensemble, position, exclude)

    def keeps_placement(self, metadata: LedgerMetadata, ensemble: tuple[BookieId, ...]) -> bool:
        """Whether the rule of the placement policy holds for an ensemble."""
        return self._placing.keeps_rule(metadata.quorum, ensemble)

    def read_order(self, bookies: Sequence[BookieId]) -> Sequence[BookieId]:
        return self.pool.health.read_order(bookies, self._now)

    def on_bookie_error(self, bookie: BookieId, error: QuireError) -> None:
        if not error.facts.get("connecting"):  # The pool counted that, once for all who waited.
            self.pool.health.on_error(bookie, error, self._now)

    def on_bookie_slow(self, bookie: BookieId) -> None:
        """Another bookie was asked because this one did not answer soon."""
        self.pool.health.on_slow(bookie, self._now)

    def on_bookie_answer(self, bookie: BookieId) -> None:
        """The bookie did what it was asked."""
        self.pool.health.on_success(bookie)

    @property
    def _now(self) -> float:
        return self.clock.monotonic()
