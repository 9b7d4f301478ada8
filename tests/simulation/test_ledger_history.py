"""The proof itself: told a lie about a ledger, it notices."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from quire.testing import SimBookie, Simulation, simulate
from quire.types import EntryId, Fragment, LedgerMetadata, LedgerState, Quorum, bookie_id
from tests.support.ledgers.history import LedgerHistory, check
from tests.support.simulation.ledgers import LedgerWorld, Plan

ENTRIES = [b"one", b"two", b"three"]
ONE, TWO, THREE, FOUR = map(EntryId, range(4))
METADATA = LedgerMetadata(Quorum(1, 1, 1), (Fragment(ONE, (bookie_id("b0"),)), Fragment(THREE, (bookie_id("b1"),))))
CLOSED = replace(METADATA, state=LedgerState.CLOSED, last_entry_id=THREE, length=11)


async def prove(sim: Simulation, tell: Callable[[LedgerHistory], None]) -> None:
    async with LedgerWorld.open(sim, Plan(bookies=3)) as world, world.ledgers("client") as ledgers:
        history = await written(world)
        tell(history)
        await check(ledgers, history)


async def written(world: LedgerWorld) -> LedgerHistory:
    history = LedgerHistory()
    async with world.ledgers("writer") as ledgers, ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2) as writer:
        history.ledger_id = writer.id
        history.on_sent(ENTRIES)
        history.on_acknowledged(await writer.append_many(ENTRIES), ENTRIES)
    history.on_end("writer", THREE)
    return history


def test_a_true_history_is_believed() -> None:
    def tell(history: LedgerHistory) -> None:
        history.on_lac("reader", TWO)
        history.on_shown(TWO, b"two")

    simulate(1, lambda sim: prove(sim, tell))


LIES: dict[str, tuple[Callable[[LedgerHistory], None], str]] = {
    "an entry that is not there": (lambda history: history.on_acknowledged([FOUR], [b"four"]), "behind the end"),
    "another payload": (lambda history: history.acknowledged.update({TWO: b"too"}), "not what was acknowledged"),
    "shown and gone": (lambda history: history.on_shown(FOUR, b"four"), "shown to readers"),
    "shown otherwise": (lambda history: history.on_shown(TWO, b"too"), "not what was acknowledged or shown"),
    "another end": (lambda history: history.on_end("reader", TWO), "told otherwise"),
    "a LAC behind the end": (lambda history: history.on_lac("reader", FOUR), "saw more confirmed"),
    "never sent": (lambda history: history.sent.discard(b"two"), "what nobody sent"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_about_the_ledger_is_noticed(lie: str) -> None:
    tell, problem = LIES[lie]
    with pytest.raises(AssertionError, match=problem):
        simulate(1, lambda sim: prove(sim, tell))


def test_too_few_copies_are_noticed() -> None:
    """Two of three bookies lose what they had, and nobody is excused."""

    async def main(sim: Simulation) -> None:
        async with LedgerWorld.open(sim, Plan(bookies=3)) as world:
            history = await written(world)
            for bookie in world.bookies[:2]:
                await forget(bookie, history)
            async with world.ledgers("client") as ledgers:
                await check(ledgers, history)

    with pytest.raises(AssertionError, match="should be on 2 of"):
        simulate(1, main)


async def forget(bookie: SimBookie, history: LedgerHistory) -> None:
    await bookie.bookie.service.storage.delete([history.ledger_id], tombstones_until_ms=0)


def twice(note: Callable[[LedgerHistory, int], None]) -> list[str]:
    """What is wrong with noting two things, the first and the second."""
    history = LedgerHistory()
    note(history, 0)
    assert not history.violations
    note(history, 1)
    return history.violations


def test_what_is_wrong_at_once_is_noted_at_once() -> None:
    assert twice(lambda history, turn: history.on_sent([b"one"]))
    assert twice(lambda history, turn: history.on_acknowledged([ONE], [b"%d" % turn]))
    assert twice(lambda history, turn: history.on_shown(ONE, b"%d" % turn))
    assert twice(lambda history, turn: history.on_lac("reader", EntryId(1 - turn)))
    assert twice(lambda history, turn: history.on_end("reader", EntryId(turn)))
    assert twice(lambda history, turn: history.on_metadata([CLOSED, METADATA][turn]))
    assert twice(lambda history, turn: history.on_metadata([CLOSED, replace(CLOSED, length=12)][turn]))
    assert twice(
        lambda history, turn: history.on_metadata([METADATA, replace(METADATA, fragments=METADATA.fragments[:1])][turn])
    )
    assert not twice(lambda history, turn: history.on_metadata([METADATA, CLOSED][turn]))
    assert not twice(lambda history, turn: history.on_lac("reader", EntryId(turn)))
