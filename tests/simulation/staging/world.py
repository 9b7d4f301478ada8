"""A simulated world of sinks: one stream, and all that they ever tried to put into it.

An attempt is one try of one batch: its payloads say so, hence each record of the stream tells where it comes from.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from quire.codec.stream_metadata.sinks import decode_staged
from quire.errors import RequestTooLarge
from quire.metadata import Cluster, Create
from quire.metadata.driver import Op, SessionId, Written
from quire.stream import staging_commit
from quire.stream.settings import StreamSettings
from quire.testing import Simulation
from quire.types import LedgerId
from tests.simulation.staging.plan import Plan
from tests.simulation.streams.world import OneStream

_ANY_NUMBER = 1_000_000
SETTINGS = StreamSettings(lock_timeout_s=6.0, call_timeout_s=8.0, commit_delay_s=0.005, entry_bytes=60)


class SinkWorld(OneStream[Plan]):
    """One run. `attempts` has the ledgers of each try that was staged as a whole."""

    def __init__(self, sim: Simulation, plan: Plan, cluster: Cluster) -> None:
        super().__init__(sim, plan, cluster)
        self.attempts: dict[str, frozenset[LedgerId]] = {}
        self.sizes: dict[str, list[int]] = {}  # Records of each part of an attempt.
        self.staged: set[LedgerId] = set()  # All ledgers that were ever named.
        self.published: set[LedgerId] = set()
        self.told: dict[tuple[str, int], str] = {}  # Batches of which somebody was told that they are in the stream.
        self.next_batch: dict[str, int] = {}  # Where the checkpoint of a sink's query is.
        self.attempt_count = 0
        self.segments_max = plan.segments_max or _ANY_NUMBER
        self.violations: list[str] = []
        self.dying: asyncio.Queue[str] = asyncio.Queue()  # Drivers that are about to crash, and do nothing more.
        self.settings = replace(
            SETTINGS, ensemble=self.quorum.ensemble, write_quorum=self.quorum.write, ack_quorum=self.quorum.ack
        )

    @contextmanager
    def observed(self) -> Iterator[None]:
        """After each change of the metadata, every batch is in the stream as a whole, or not at all."""
        with self.changes.observed():
            carry_out = self.tree.carry_out

            def watched(ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
                begun = sum(isinstance(op, Create) and op.path.startswith(f"{self.paths.segments}/") for op in ops)
                if begun > self.segments_max:
                    self.events["too large"] += 1
                    raise RequestTooLarge(f"{begun} segments are more than {self.segments_max}")
                try:
                    return carry_out(ops, session, now_ms)
                finally:
                    self._look(ops)

            few = patch.object(staging_commit, "_SEGMENTS_MAX", self.segments_max)
            with few, patch.object(self.tree, "carry_out", watched):
                yield

    def _look(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if isinstance(op, Create) and op.path.startswith(f"{self.paths.staged}/"):
                self.staged.add(decode_staged(op.data).ledger)
        if not any(op.path.startswith(f"{self.paths.segments}/") for op in ops):
            return
        segments = [change.segment for change in self.history.changes if change.segment is not None]
        self.published = {segment.ledger_id for segment in segments}
        for attempt, ledgers in self.attempts.items():
            there = ledgers & self.published
            # Of what is merged, single ledgers say nothing: records do, in the end.
            if there and there != ledgers and len(ledgers) <= self.segments_max:
                self.violations.append(f"NeverHalf: {attempt}: {len(there)} of {len(ledgers)} segments")

    def tally(self) -> Counter[str]:
        inline = sum(attempt not in self.attempts for attempt in self.sizes)
        return super().tally() + Counter(inline=inline, published=len(self.published & self.staged))
