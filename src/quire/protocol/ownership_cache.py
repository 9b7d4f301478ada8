"""Which proxy owned each stream when a client last heard of it. Sans-IO.

Invariants:
  BothWays          `stream → owner` and `owner → streams` say the same.
  NewestCounts      what is known of an epoch is never replaced by what is known of an earlier one.
  LateIsHarmless    whoever speaks of an owner that was replaced meanwhile changes nothing: an update names the owner
                    that it replaces, a removal the one that it removes.
  Bounded           of more than `streams_max` streams those that were not asked for longest are forgotten.
"""

from collections.abc import Iterable
from typing import NamedTuple

from quire.errors import invariant


class Known(NamedTuple):
    """What is known of one stream. The epoch stays when the owner is forgotten: so an old redirect is known as old."""

    owner: str | None
    epoch: int
    """The LSSN of the owner's segment; 0 if nobody said."""


_NOTHING = Known(None, 0)


class OwnershipCache:
    """Owners by stream. Addresses are `host:port`."""

    def __init__(self, *, streams_max: int) -> None:
        invariant(streams_max > 0, "a cache without room", streams_max=streams_max)
        self._streams_max = streams_max
        self._known: dict[str, Known] = {}  # In the order in which they were last asked for.
        self._owned: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def owner(self, stream: str) -> str | None:
        known = self._known.pop(stream, None)
        if known is None:
            return None
        self._known[stream] = known
        return known.owner

    def epoch(self, stream: str) -> int:
        """The highest that was heard of; 0 if none was."""
        return self._known.get(stream, _NOTHING).epoch

    def streams_of(self, owner: str) -> frozenset[str]:
        return frozenset(self._owned.get(owner, ()))

    def is_news(self, stream: str, epoch: int) -> bool:
        """Whether somebody who speaks of `epoch` may be right. Who does not know it, may."""
        return not epoch or epoch >= self.epoch(stream)

    def update(self, stream: str, owner: str, *, epoch: int = 0, expected: str | None = None) -> bool:
        """Remember an owner, in place of the `expected` one. Whether that is what is remembered now.

        A later epoch counts in any case; an earlier one never does.
        """
        known = self._known.get(stream, _NOTHING)
        if epoch and epoch < known.epoch:
            return False
        if epoch <= known.epoch and known.owner not in (None, owner, expected):
            return False
        self._replace(stream, Known(owner, max(epoch, known.epoch)))
        return True

    def drop(self, stream: str, *, expected: str) -> bool:
        """Forget the owner of a stream, if it is the `expected` one."""
        known = self._known.get(stream, _NOTHING)
        if known.owner != expected:
            return False
        self._replace(stream, Known(None, known.epoch))
        return True

    def drop_owner(self, owner: str) -> frozenset[str]:
        """Forget that `owner` has any streams. Returns those that it had."""
        streams = self.streams_of(owner)
        for stream in streams:
            self.drop(stream, expected=owner)
        return streams

    def forget(self, streams: Iterable[str]) -> None:
        """As if nobody had ever heard of them: for streams that were deleted, and begin anew."""
        for stream in streams:
            if stream in self._known:
                self._replace(stream, None)

    def _replace(self, stream: str, known: Known | None) -> None:
        before = self._known.pop(stream, _NOTHING)
        if before.owner is not None:
            owned = self._owned[before.owner]
            owned.discard(stream)
            if not owned:
                del self._owned[before.owner]
        if known is None:
            return
        self._known[stream] = known
        if known.owner is not None:
            self._owned.setdefault(known.owner, set()).add(stream)
        if len(self._known) > self._streams_max:
            self._replace(next(iter(self._known)), None)
