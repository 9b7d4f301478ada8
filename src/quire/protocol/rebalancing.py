"""Decide which copies to move from full bookies to emptier ones. Sans-IO.

What moves is all that one bookie has of one closed ledger: a bookie gives the room back only when no fragment of the
ledger names it any more. The largest come first, from the bookie that is fuller than its share by most; a move is made
only if the taker is then still less full than the giver was, so that every move brings them closer, and the work ends.

Invariants, of every plan:
  OneEach         no bookie has two copies of an entry: a taker has nothing of the ledger before. So what a bookie has
                  of a ledger stays together, too, and its room comes back as a whole.
  RacksKept       no ensemble keeps the placement policy less well than before.
  RoomLeft        no taker gets more than it has room for.
  Bounded         at most `bytes_max` are moved.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from quire.errors import InvalidArgument
from quire.protocol.capacity import BookieSpace
from quire.protocol.placement import Adherence, BookieView, Placement
from quire.protocol.shares import FragmentShare, LedgerEnd, shares
from quire.types import BookieId, EntryId, LedgerId, LedgerMetadata, LedgerState, Quorum
from quire.values import dataclass

TOLERANCE: Final = 0.02  # Of a disk: closer to its share than this nobody has to be.

_RANK: Final = {Adherence.FAIL: 0, Adherence.MEETS_SOFT: 1, Adherence.MEETS_STRICT: 2}


class Move(NamedTuple):
    """What one bookie has of a ledger goes to another one: in the fragments that begin with these entries."""

    ledger_id: LedgerId
    source: BookieId
    target: BookieId
    firsts: tuple[EntryId, ...]
    bytes: int


@dataclass(frozen=True, slots=True)
class Level:
    """How much of ledgers a bookie holds, and the size of its disk."""

    bookie: BookieId
    stored_bytes: int
    total_bytes: int

    @property
    def share(self) -> float:
        return self.stored_bytes / max(1, self.total_bytes)


@dataclass(frozen=True, slots=True)
class Plan:
    """The moves, in the order in which they should be made, and how full bookies are before and after them."""

    moves: tuple[Move, ...]
    before: tuple[Level, ...]
    after: tuple[Level, ...]

    @property
    def bytes(self) -> int:
        return sum(move.bytes for move in self.moves)


class Holding(NamedTuple):
    """What one bookie has of one ledger."""

    ledger_id: LedgerId
    bookie: BookieId
    quorum: Quorum
    fragments: tuple[FragmentShare, ...]
    """Those that name the bookie."""

    bytes: int


def holdings_of(ledger_id: LedgerId, metadata: LedgerMetadata) -> list[Holding]:
    """Who has what of a closed ledger. Nothing of another one may be moved: its writer decides where it is."""
    if metadata.state is not LedgerState.CLOSED:
        return []
    fragments = shares(metadata, LedgerEnd(metadata.last_entry_id, metadata.length))
    found = []
    for bookie in dict.fromkeys(bookie for fragment in fragments for bookie in fragment.bookies):
        own = tuple(fragment for fragment in fragments if bookie in fragment.bookies)
        held = sum(fragment.bytes_by_position[fragment.bookies.index(bookie)] for fragment in own)
        found.append(Holding(ledger_id, bookie, metadata.quorum, own, held))
    return found


def plan_moves(
    spaces: Sequence[BookieSpace],
    holdings: Iterable[Holding],
    *,
    policy: Placement,
    locations: Mapping[BookieId, str] | None = None,
    bytes_max: int | None = None,
    tolerance: float = TOLERANCE,
) -> Plan:
    """Raises `InvalidArgument` if there is nobody to move anything to, or nothing is known of disks."""
    if sum(space.is_writable for space in spaces) < 2 or not all(space.total_bytes > 0 for space in spaces):
        raise InvalidArgument(
            "there is nothing to balance: fewer than two bookies are writable, or their sizes are not known",
            hint="`quire bookie status` shows how they are.",
        )
    planner = _Planner(spaces, holdings, policy, dict(locations or {}), tolerance)
    return planner.plan(bytes_max)


class _Planner:
    def __init__(
        self,
        spaces: Sequence[BookieSpace],
        holdings: Iterable[Holding],
        policy: Placement,
        locations: Mapping[BookieId, str],
        tolerance: float,
    ) -> None:
        self._totals = {space.bookie: space.total_bytes for space in spaces}
        self._stored = dict.fromkeys(self._totals, 0)
        self._rooms = {space.bookie: space.room_bytes for space in spaces if space.is_writable}
        self._policy, self._tolerance = policy, tolerance
        self._view = BookieView(frozenset(self._rooms), locations)
        self._waiting: dict[BookieId, list[Holding]] = {bookie: [] for bookie in self._totals}
        self._members: dict[tuple[LedgerId, EntryId], tuple[BookieId, ...]] = {}  # With the moves so far.
        self._holders: dict[LedgerId, set[BookieId]] = {}
        for held in holdings:
            self._holders.setdefault(held.ledger_id, set()).add(held.bookie)
            if held.bookie in self._stored and held.bytes:
                self._stored[held.bookie] += held.bytes
                self._waiting[held.bookie].append(held)
                for fragment in held.fragments:
                    self._members[held.ledger_id, fragment.first] = fragment.bookies
        for each in self._waiting.values():
            each.sort(key=lambda held: (held.bytes, held.ledger_id))  # The largest is popped first.
        self._mean = sum(self._stored.values()) / sum(self._totals.values())

    def plan(self, bytes_max: int | None) -> Plan:
        before, moves, left = self._levels(), [], bytes_max
        sources = [(-self._excess(bookie), bookie) for bookie in self._totals]
        heapq.heapify(sources)
        while sources:
            _, source = heapq.heappop(sources)
            move = self._next(source, left)
            if move is None:
                continue  # It has its share, or nothing that anybody could take.
            moves.append(move)
            left = None if left is None else left - move.bytes
            heapq.heappush(sources, (-self._excess(source), source))
        return Plan(tuple(moves), before, self._levels())

    def _next(self, source: BookieId, left: int | None) -> Move | None:
        waiting = self._waiting[source]
        while waiting and self._excess(source) > self._tolerance:
            held = waiting.pop()
            if left is not None and held.bytes > left:
                continue
            target = self._taker(held)
            if target is not None:
                return self._move(held, target)
        return None

    def _taker(self, held: Holding) -> BookieId | None:
        """The emptiest bookie that may have it, and is then less full than the giver is now."""
        limit = self._share(held.bookie)
        for target in sorted(self._rooms, key=lambda bookie: (self._share(bookie), bookie)):
            after = (self._stored[target] + held.bytes) / self._totals[target]
            if after >= limit or target in self._holders[held.ledger_id]:
                continue
            if self._rooms[target] >= held.bytes and all(self._fits(held, each, target) for each in held.fragments):
                return target
        return None

    def _fits(self, held: Holding, fragment: FragmentShare, target: BookieId) -> bool:
        bookies = self._members[held.ledger_id, fragment.first]
        changed = tuple(target if bookie == held.bookie else bookie for bookie in bookies)
        rank = [_RANK[self._policy.adherence(self._view, held.quorum, each)] for each in (bookies, changed)]
        return rank[1] >= rank[0]

    def _move(self, held: Holding, target: BookieId) -> Move:
        for fragment in held.fragments:
            key = (held.ledger_id, fragment.first)
            self._members[key] = tuple(target if bookie == held.bookie else bookie for bookie in self._members[key])
        self._holders[held.ledger_id] ^= {held.bookie, target}
        self._stored[held.bookie] -= held.bytes
        self._stored[target] += held.bytes
        self._rooms[target] -= held.bytes
        firsts = tuple(fragment.first for fragment in held.fragments)
        return Move(held.ledger_id, held.bookie, target, firsts, held.bytes)

    def _share(self, bookie: BookieId) -> float:
        return self._stored[bookie] / self._totals[bookie]

    def _excess(self, bookie: BookieId) -> float:
        """How much fuller a bookie is than all are on the whole."""
        return self._share(bookie) - self._mean

    def _levels(self) -> tuple[Level, ...]:
        return tuple(Level(bookie, self._stored[bookie], total) for bookie, total in sorted(self._totals.items()))
