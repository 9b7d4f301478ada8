"""Changes of a stream's metadata where segments move between hot and cold: a move is no change of the stream.

The history knows each segment by its first ledger. A segment that is restored has another one, with the same records:
that these are the same is proven by those who read them.
"""

from collections.abc import Sequence
from dataclasses import replace

from quire.codec.cold import ColdSegment, decode_cold
from quire.codec.stream_metadata.segment import Segment, decode_segment, encode_segment, lssn_of_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.metadata import Create, Delete, Set
from quire.metadata.driver import Op
from quire.testing import SimTree
from quire.types import LedgerId, Lssn
from tests.simulation.streams.changes import MetadataChanges
from tests.support.streams.history import StreamHistory


class ColdChanges(MetadataChanges):
    """`met` counts the moves, too."""

    def __init__(self, tree: SimTree, paths: StreamPaths, history: StreamHistory) -> None:
        super().__init__(tree, paths, history)
        self._only_cold: set[Lssn] = set()
        self._ledgers: dict[Lssn, LedgerId] = {}

    def _note(self, ops: Sequence[Op], doomed: dict[str, bytes], now_ms: int) -> None:
        cold = self._cold_sets(ops)
        plain: list[Op] = []
        for op in ops:
            lssn = self._hot_lssn(op)
            if lssn is not None and lssn in cold and isinstance(op, Delete):
                self._only_cold.add(lssn)
                self._current.pop(lssn, None)
                self.deleted |= {op.path: doomed[op.path]}
                self.met["moved to cold"] += 1
            elif lssn is not None and lssn in cold and isinstance(op, Create):
                self._only_cold.discard(lssn)
                self._current[lssn] = op.path.rpartition("/")[2]
                self.met["moved to hot"] += 1
            else:
                if lssn is not None and isinstance(op, Create | Set):
                    self._ledgers.setdefault(lssn, decode_segment(op.data).ledger_id)
                    op = replace(op, data=self._as_first(lssn, op.data))
                plain.append(op)
        super()._note(plain, doomed, now_ms)
        self._note_cold(ops, cold, now_ms)

    def _note_cold(self, ops: Sequence[Op], cold: dict[Lssn, ColdSegment], now_ms: int) -> None:
        for lssn, changed in cold.items():
            if lssn in self._only_cold:
                self._history.on_segment(lssn, self._first(lssn, changed.segment), wall_ms=now_ms)
        for op in ops:
            number = self._cold_lssn(op)
            if isinstance(op, Delete) and number is not None and number in self._only_cold:
                self._only_cold.discard(number)
                self._history.on_segment(number, None, wall_ms=now_ms)

    def _cold_sets(self, ops: Sequence[Op]) -> dict[Lssn, ColdSegment]:
        return {lssn: decode_cold(op.data) for op in ops if isinstance(op, Set) and (lssn := self._cold_lssn(op))}

    def _first(self, lssn: Lssn, segment: Segment) -> Segment:
        return replace(segment, ledger_id=self._ledgers[lssn])

    def _as_first(self, lssn: Lssn, data: bytes) -> bytes:
        return encode_segment(self._first(lssn, decode_segment(data)))

    def _hot_lssn(self, op: Op) -> Lssn | None:
        prefix = f"{self._paths.segments}/"
        return lssn_of_name(op.path.removeprefix(prefix)) if op.path.startswith(prefix) else None

    def _cold_lssn(self, op: Op) -> Lssn | None:
        prefix = f"{self._paths.cold}/"
        return lssn_of_name(op.path.removeprefix(prefix)) if op.path.startswith(prefix) else None
