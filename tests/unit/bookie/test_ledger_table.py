"""The table of ledgers: what a deletion leaves behind, what brings a ledger back, and who may leave memory."""

import pytest

from quire.bookie.index import Operation
from quire.bookie.ledger_state import LacWaiter, Ledger
from quire.bookie.ledger_table import LedgerTable
from quire.errors import InvalidArgument
from quire.protocol.fencing import Refusal
from quire.testing.sim_index import SimIndex, SimIndexFolder
from quire.testing.sim_rng import SimRng
from quire.types import EntryId, LedgerId

KEY = b"k" * 20
ONE, TWO = LedgerId(1), LedgerId(2)
UNTIL_MS = 1_000


@pytest.fixture
def index() -> SimIndex:
    return SimIndexFolder(SimRng(1)).open(create=True)


@pytest.fixture
def table(index: SimIndex) -> LedgerTable:
    return LedgerTable(index)


def created(table: LedgerTable, ledger_id: LedgerId, *, fenced: bool = False) -> Ledger:
    ledger = table.create(ledger_id, KEY, revive=False)
    assert isinstance(ledger, Ledger)
    ledger.gate.fenced = fenced
    return ledger


def begin_drop(table: LedgerTable, *ledger_ids: LedgerId, touched_max: int = 0) -> list[Operation]:
    return table.begin_drop(ledger_ids, tombstones_until_ms=UNTIL_MS, touched_max=touched_max)


def commit(table: LedgerTable, index: SimIndex) -> None:
    index.commit(*table.take_changes())
    table.end_commit()


def drop(table: LedgerTable, index: SimIndex, *ledger_ids: LedgerId) -> None:
    commit(table, index)
    index.commit(*begin_drop(table, *ledger_ids))
    table.end_drop()


# --- Coming and going


def test_a_ledger_is_found_after_it_left_memory(table: LedgerTable, index: SimIndex) -> None:
    created(table, ONE, fenced=True)
    commit(table, index)
    table.shrink(0, busy=())
    assert not table.by_id
    found = table.find(ONE)
    assert found is not None
    assert (found.gate.fenced, found.gate.master_key) == (True, KEY)


def test_ledgers_that_are_busy_changed_or_waited_for_stay_in_memory(table: LedgerTable, index: SimIndex) -> None:
    idle, busy, waited_for, ahead = (LedgerId(number) for number in range(4))
    for ledger_id in (idle, busy, waited_for, ahead):
        created(table, ledger_id)
    commit(table, index)
    changed = LedgerId(4)
    created(table, changed)
    table.by_id[waited_for].waiters.append(LacWaiter(EntryId(0), lambda _: None))
    table.by_id[ahead].raise_lac(EntryId(9))  # Neither an entry nor an explicit LAC says so.
    table.shrink(0, busy=[busy])
    assert [*table.by_id] == [busy, waited_for, ahead, changed]
    table.shrink(100, busy=())
    assert len(table.by_id) == 4


def test_a_ledger_stays_in_memory_until_the_index_has_it(table: LedgerTable, index: SimIndex) -> None:
    """`find` would read what the index had before: another state, or nothing at all."""
    created(table, ONE)
    commit(table, index)
    table.by_id[ONE].gate.fenced = True
    table.on_change(ONE)
    created(table, TWO)
    operations = table.take_changes()
    table.shrink(0, busy=())
    assert [*table.by_id] == [ONE, TWO]
    table.on_change(TWO)
    index.commit(*operations)
    table.end_commit()
    table.shrink(0, busy=())
    assert [*table.by_id] == [TWO]
    found = table.find(ONE)
    assert found is not None
    assert found.gate.fenced


def test_changes_are_told_once(table: LedgerTable, index: SimIndex) -> None:
    created(table, ONE)
    seen = [table.has_changes]
    commit(table, index)
    seen.append(table.has_changes)
    table.on_change(ONE)
    seen.append(table.has_changes)
    assert (seen, index.ledgers()) == ([True, False, True], [ONE])


def test_there_are_no_ledgers_below_zero(table: LedgerTable) -> None:
    with pytest.raises(InvalidArgument):
        table.create(LedgerId(-1), KEY, revive=True)


# --- Tombstones


def test_a_deleted_ledger_that_was_not_fenced_may_be_created_again(table: LedgerTable, index: SimIndex) -> None:
    created(table, ONE)
    drop(table, index, ONE)
    assert table.find(ONE) is None
    assert not table.is_buried(ONE)
    assert not created(table, ONE).gate.fenced


def test_where_a_fenced_ledger_was_deleted_nobody_writes_but_a_recovery(table: LedgerTable, index: SimIndex) -> None:
    """The writer who was shut out must not find an open ledger because it was forgotten here."""
    created(table, ONE, fenced=True)
    drop(table, index, ONE)
    assert table.is_buried(ONE)
    assert table.create(ONE, KEY, revive=False) is Refusal.GONE
    revived = table.create(ONE, KEY, revive=True)
    assert isinstance(revived, Ledger)
    assert revived.gate.fenced
    assert index.tombstones() == [(ONE, UNTIL_MS)], "it is needed until the ledger itself is in the index"
    commit(table, index)
    assert (index.tombstones(), index.ledgers()) == ([], [ONE])


def test_a_tombstone_holds_from_the_moment_of_the_deletion(table: LedgerTable, index: SimIndex) -> None:
    """The index learns of it later, and a writer may come in between."""
    for ledger_id in (ONE, TWO):
        created(table, ledger_id, fenced=ledger_id == ONE)
    commit(table, index)
    operations = begin_drop(table, ONE, TWO)
    assert table.find(ONE) is None
    assert (table.is_dropping(ONE), table.is_buried(ONE), table.is_buried(TWO)) == (True, True, False)
    assert table.create(ONE, KEY, revive=False) is Refusal.GONE
    assert table.ids(index.ledgers()) == []
    index.commit(*operations)
    table.end_drop()
    assert (table.is_dropping(ONE), table.is_buried(ONE)) == (False, True)


def test_a_revived_ledger_that_is_deleted_again_keeps_its_tombstone(table: LedgerTable, index: SimIndex) -> None:
    created(table, ONE, fenced=True)
    drop(table, index, ONE)
    table.create(ONE, KEY, revive=True)
    index.commit(*begin_drop(table, ONE))
    table.end_drop()
    commit(table, index)
    assert (index.tombstones(), index.ledgers()) == ([(ONE, UNTIL_MS)], [])


def test_a_deletion_leaves_what_was_touched_since_and_wakes_who_waits_for_the_rest(
    table: LedgerTable, index: SimIndex
) -> None:
    woken = []
    for ledger_id, touched in ((ONE, 7), (TWO, 8)):
        ledger = created(table, ledger_id)
        ledger.touched = touched
        ledger.waiters.append(LacWaiter(EntryId(0), lambda _, each=ledger_id: woken.append(each)))  # type: ignore[misc]
    commit(table, index)
    index.commit(*begin_drop(table, ONE, TWO, LedgerId(3), touched_max=7))
    table.end_drop()
    assert (table.ids(index.ledgers()), woken) == ([TWO], [ONE])


def test_a_ledger_that_was_touched_since_stays_though_it_left_memory_and_came_back(
    table: LedgerTable, index: SimIndex
) -> None:
    created(table, ONE).touched = 8
    commit(table, index)
    table.shrink(0, busy=())
    assert table.find(ONE) is not None
    assert begin_drop(table, ONE, touched_max=7) == []
    assert begin_drop(table, ONE, touched_max=8) != []


# --- Damage


def test_after_damage_every_new_ledger_is_in_limbo_until_it_is_settled(table: LedgerTable, index: SimIndex) -> None:
    created(table, ONE)
    table.enter_limbo([ONE, TWO])
    assert table.by_id[ONE].gate.limbo
    assert created(table, TWO).gate.limbo
    commit(table, index)
    assert LedgerTable(index).is_damaged, "also after a restart"
    table.settle_damage()
    assert not created(table, LedgerId(3)).gate.limbo
    commit(table, index)
    later = LedgerTable(index)
    assert not later.is_damaged
    limbo = {each for each in later.ids(index.ledgers()) if (ledger := later.find(each)) and ledger.gate.limbo}
    assert limbo == {ONE, TWO}


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("was_fenced", [False, True])
@pytest.mark.parametrize("fenced", [False, True])
def test_limbo_never_undoes_a_fence(table: LedgerTable, known: bool, was_fenced: bool, fenced: bool) -> None:
    if known:
        created(table, ONE, fenced=was_fenced)
    table.put_in_limbo(ONE, KEY, fenced=fenced)
    gate = table.by_id[ONE].gate
    assert (gate.limbo, gate.fenced) == (True, fenced or (known and was_fenced))
