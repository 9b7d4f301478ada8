"""Every change of a simulated cluster's metadata, seen as it happens; and requests that are lost or late.

The history of a stream learns of its segments here, at the very moment at which they change. What is deleted is kept,
so that the proof can read purged segments.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal
from unittest.mock import patch

from quire.codec.stream_metadata.segment import decode_segment, lssn_of_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import MetadataOutcomeUnknown
from quire.metadata import Create, Delete, Set
from quire.metadata.driver import Op, SessionId, Written
from quire.testing.sim_metadata import SimTree
from quire.testing.simulation import current_host_name
from quire.types import Lssn
from tests.support.streams.history import StreamHistory

Fate = Literal["lost", "late", "last"]


class MetadataChanges:
    """What happens to one stream's nodes in a simulated tree."""

    def __init__(self, tree: SimTree, paths: StreamPaths, history: StreamHistory) -> None:
        self._tree, self._paths, self._history = tree, paths, history
        self._commit, self._carry_out = tree.commit, tree.carry_out
        self._fates: dict[str, list[tuple[Fate, float, bool]]] = {}
        self._current: dict[Lssn, str] = {}  # The name of each segment's node.
        self.deleted: dict[str, bytes] = {}
        self.met: Counter[str] = Counter()  # How often requests for the stream were lost or late.

    @contextmanager
    def observed(self) -> Iterator[None]:
        with patch.object(self._tree, "commit", self.commit), patch.object(self._tree, "carry_out", self.carry_out):
            yield

    def lose_requests(self, host: str, count: int) -> None:
        """The next changes of the stream that a host asks for do not happen, and it is told that nobody knows."""
        self._fates.setdefault(host, []).extend([("lost", 0.0, False)] * count)

    def delay_requests(self, host: str, count: int, seconds: float, *, is_first: bool) -> None:
        """They happen later, if nothing stands against them then: see `SimTree.delay_writes`."""
        self._fates.setdefault(host, []).extend([("late", seconds, is_first)] * count)

    def stop_behind(self, host: str, seconds: float) -> None:
        """The next change of the stream that a host asks for happens. Then it stands still while its session ends."""
        self._fates.setdefault(host, []).append(("last", seconds, False))

    def repair(self) -> None:
        self._fates.clear()

    def commit(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        host = current_host_name() or ""
        fates = self._fates.get(host)
        if fates and any(op.path.startswith(self._paths.root) for op in ops):
            fate, seconds, is_first = fates.pop(0)
            self.met[fate] += 1
            if fate == "last":
                written = self._commit(ops, session, now_ms)
                self._tree.stall(host, seconds)
                self._tree.expire(session)
                return written
            if fate == "lost":
                raise MetadataOutcomeUnknown("the request to the metadata tree is lost (simulated)")
            self._tree.delay_writes(host, 1, seconds, is_first=is_first)
        try:
            return self._commit(ops, session, now_ms)
        except MetadataOutcomeUnknown:
            self.met["answer lost"] += any(op.path.startswith(self._paths.root) for op in ops)
            raise

    def carry_out(self, ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        doomed = {op.path: entry.data for op in ops if isinstance(op, Delete) and (entry := self._tree.find(op.path))}
        written = self._carry_out(ops, session, now_ms)
        self._note(ops, doomed, now_ms)
        return written

    def _note(self, ops: Sequence[Op], doomed: dict[str, bytes], now_ms: int) -> None:
        self.deleted |= doomed
        prefix = f"{self._paths.segments}/"
        gone: list[tuple[Lssn, str]] = []
        for op in ops:
            name = op.path.removeprefix(prefix)
            lssn = lssn_of_name(name) if op.path.startswith(prefix) else None
            if lssn is None:
                continue
            if isinstance(op, Create | Set):
                self._current[lssn] = name
                self._history.on_segment(lssn, decode_segment(op.data), wall_ms=now_ms)
            elif isinstance(op, Delete):
                gone.append((lssn, name))
        for lssn, name in gone:
            if self._current.get(lssn) == name:  # Else it was completed, and has another name now.
                del self._current[lssn]
                self._history.on_segment(lssn, None, wall_ms=now_ms)
