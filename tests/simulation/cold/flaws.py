"""Bugs to plant into the code that moves segments between hot and cold. A simulation that misses them proves little."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

from quire.stream.cold_nodes import ColdNodes, StoredCold
from quire.stream.nodes import StoredSegment
from quire.stream.segment_index import SegmentIndex
from quire.types import Lssn
from tests.simulation.cold.workloads import WORKLOADS
from tests.simulation.harness import Flaw, Patch


def a_segment_that_moves_is_passed_over() -> Patch:
    """What is only cold looks as if it was purged."""

    async def nothing(*_: object) -> dict[Lssn, str]:
        return {}

    return patch.object(SegmentIndex, "_list_cold", nothing)


def what_is_dropped_is_as_it_was_archived() -> Patch:
    """What was truncated since comes back."""
    drop = ColdNodes.drop

    async def forgetful(self: ColdNodes, hot: StoredSegment, cold: StoredCold, **options: Any) -> StoredCold:
        return await drop(self, replace(hot, segment=cold.cold.segment), cold, **options)

    return patch.object(ColdNodes, "drop", forgetful)


FLAWS = [
    Flaw(a_segment_that_moves_is_passed_over, WORKLOADS["cold/rolling"], 24),
    Flaw(what_is_dropped_is_as_it_was_archived, WORKLOADS["cold/truncation"], 24),
]
