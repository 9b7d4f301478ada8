"""Plans for moving copies: what every one of them keeps, and what they achieve."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.capacity import BookieSpace
from quire.protocol.placement import Adherence, BookieView, RandomPlacement
from quire.protocol.placement_racks import RackAwarePlacement
from quire.protocol.rebalancing import Holding, Plan, holdings_of, plan_moves
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

GB = 10**9
BOOKIES = [BookieId(f"bookie-{number}") for number in range(1, 7)]


def space(bookie: BookieId, *, free: int = 500 * GB, total: int = 1000 * GB, writable: bool = True) -> BookieSpace:
    return BookieSpace(bookie, writable, free, total)


def ledger(
    bookies: list[tuple[int, list[BookieId]]], *, size: int, entries: int = 1000, quorum: Quorum | None = None
) -> LedgerMetadata:
    """`bookies` are the fragments: first entry, members."""
    ensemble = len(bookies[0][1])
    return LedgerMetadata(
        quorum or Quorum(ensemble, ensemble, min(2, ensemble)),
        tuple(Fragment(EntryId(first), tuple(members)) for first, members in bookies),
        LedgerState.CLOSED,
        EntryId(entries - 1),
        size,
    )


def all_holdings(ledgers: dict[int, LedgerMetadata]) -> list[Holding]:
    return [held for number, metadata in ledgers.items() for held in holdings_of(LedgerId(number), metadata)]


def applied(ledgers: dict[int, LedgerMetadata], plan: Plan) -> dict[int, LedgerMetadata]:
    """What the metadata says when all moves are made. Fails if a move does not fit what is there."""
    changed = dict(ledgers)
    for move in plan.moves:
        metadata = changed[move.ledger_id]
        fragments = []
        for fragment in metadata.fragments:
            if fragment.first_entry_id in move.firsts:
                assert move.source in fragment.bookies
                assert move.target not in fragment.bookies, "two copies of an entry on one bookie"
                members = tuple(move.target if each == move.source else each for each in fragment.bookies)
                fragment = Fragment(fragment.first_entry_id, members)
            assert move.source not in fragment.bookies, "its room would not come back"
            fragments.append(fragment)
        changed[move.ledger_id] = metadata.updated(fragments=tuple(fragments))
    return changed


def stored(ledgers: dict[int, LedgerMetadata]) -> Counter[BookieId]:
    found = Counter[BookieId]()
    for held in all_holdings(ledgers):
        found[held.bookie] += held.bytes
    return found


def test_a_hundred_gigabytes_spread_from_three_bookies_to_five() -> None:
    """Method: 100 GB in segments of 64 MB, three copies of each on the same three bookies; then two empty ones come.
    Each of the five should hold 60 GB; so 120 GB are moved, and hardly more."""
    rng = Random(1)
    size = 64 * 10**6
    ledgers = {
        number: ledger([(0, rng.sample(BOOKIES[:3], 3))], size=size, entries=1000) for number in range(100 * GB // size)
    }
    spaces = [space(bookie) for bookie in BOOKIES[:5]]
    plan = plan_moves(spaces, all_holdings(ledgers), policy=RandomPlacement(), tolerance=0.0005)
    held = stored(applied(ledgers, plan))
    fair = sum(held.values()) / 5
    assert all(held[bookie] == pytest.approx(fair, rel=0.02) for bookie in BOOKIES[:5])
    assert plan.bytes == pytest.approx(2 * fair, rel=0.02)
    assert [level.stored_bytes for level in plan.after] == [held[bookie] for bookie in BOOKIES[:5]]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_every_plan_keeps_its_promises(seed: int) -> None:
    """Ledgers with several fragments, striped or not, disks of different sizes, some read-only, racks, a limit."""
    rng = Random(seed)
    bookies = BOOKIES[: rng.randint(3, 6)]
    racks = {bookie: f"/rack-{rng.randrange(3)}" for bookie in bookies}
    ensemble = rng.randint(2, 3)
    quorum = Quorum(ensemble, rng.randint(1, ensemble), 1)
    ledgers = {}
    for number in range(rng.randint(1, 60)):
        firsts = [0, *sorted(rng.sample(range(1, 99), rng.randint(0, 2)))]
        fragments = [(first, rng.sample(bookies[: rng.randint(ensemble, len(bookies))], ensemble)) for first in firsts]
        ledgers[number] = ledger(fragments, size=rng.randint(0, GB), entries=100, quorum=quorum)
    spaces = [
        space(bookie, free=rng.randint(0, 60) * GB, total=rng.randint(60, 99) * GB, writable=rng.random() < 0.8)
        for bookie in bookies
    ]
    limit = rng.choice([None, 5 * GB])
    policy = RackAwarePlacement(2)
    if sum(each.is_writable for each in spaces) < 2:
        return
    plan = plan_moves(
        spaces, all_holdings(ledgers), policy=policy, locations=racks, bytes_max=limit, tolerance=rng.choice([0, 0.02])
    )
    after = applied(ledgers, plan)
    assert limit is None or plan.bytes <= limit
    view = BookieView(frozenset(each.bookie for each in spaces if each.is_writable), racks)
    order = [Adherence.FAIL, Adherence.MEETS_SOFT, Adherence.MEETS_STRICT]
    for number, metadata in ledgers.items():
        for old, new in zip(metadata.fragments, after[number].fragments, strict=True):
            assert len(set(new.bookies)) == len(new.bookies)
            kept = [order.index(policy.adherence(view, quorum, each.bookies)) for each in (old, new)]
            assert kept[1] >= kept[0], "racks"
    gained = Counter[BookieId]()
    for move in plan.moves:
        gained[move.target] += move.bytes
    for each in spaces:
        assert gained[each.bookie] <= (each.room_bytes if each.is_writable else 0)
    worst = [max(level.share for level in levels) for levels in (plan.before, plan.after)]
    assert worst[1] <= worst[0] + 1e-12, "nobody gets fuller than the fullest was"


def test_bookies_that_have_their_share_are_left_alone() -> None:
    ledgers = {number: ledger([(0, BOOKIES[:3])], size=GB) for number in range(20)}
    spaces = [space(bookie) for bookie in BOOKIES[:3]]
    assert plan_moves(spaces, all_holdings(ledgers), policy=RandomPlacement()).moves == ()


def test_a_larger_disk_gets_a_larger_share() -> None:
    ledgers = {number: ledger([(0, [BOOKIES[0]])], size=GB // 10) for number in range(400)}
    spaces = [space(BOOKIES[0], total=100 * GB), space(BOOKIES[1], total=300 * GB, free=300 * GB)]
    held = stored(
        applied(ledgers, plan_moves(spaces, all_holdings(ledgers), policy=RandomPlacement(), tolerance=0.001))
    )
    assert held[BOOKIES[1]] / held[BOOKIES[0]] == pytest.approx(3, rel=0.05)


def test_a_ledger_that_is_written_is_not_moved() -> None:
    metadata = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BOOKIES[0],)),))
    assert holdings_of(LedgerId(1), metadata) == []


def test_all_fragments_that_name_a_bookie_move_together() -> None:
    a, b, c, d = BOOKIES[:4]
    ledgers = {number: ledger([(0, [a, b]), (500, [a, c])], size=GB) for number in range(10)}
    plan = plan_moves([space(x, total=100 * GB) for x in (a, b, c, d)], all_holdings(ledgers), policy=RandomPlacement())
    from_a = [move for move in plan.moves if move.source == a]
    assert from_a
    assert all(move.firsts == (0, 500) and move.target == d for move in from_a)


def test_without_takers_or_sizes_there_is_no_plan() -> None:
    with pytest.raises(InvalidArgument):
        plan_moves([space(BOOKIES[0])], [], policy=RandomPlacement())
    with pytest.raises(InvalidArgument):
        plan_moves([space(BOOKIES[0]), space(BOOKIES[1], total=0)], [], policy=RandomPlacement())
