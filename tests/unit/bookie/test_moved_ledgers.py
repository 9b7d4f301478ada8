"""A bookie lets go of a ledger only if it is certain that others have it, and that nobody copies it here."""

import pytest

from quire.bookie.moved_ledgers import MovedLedgers
from quire.metadata import init_cluster, open_store, parse_uri
from quire.metadata.underreplication import Underreplication
from quire.testing import Simulation, simulate
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, LedgerState, Quorum

HERE, OTHER = BookieId("here"), BookieId("other")


def fragments(*bookies: BookieId) -> tuple[Fragment, ...]:
    return tuple(Fragment(EntryId(10 * number), (bookie,)) for number, bookie in enumerate(bookies))


@pytest.mark.parametrize(
    ("state", "bookies", "is_moved"),
    [
        (LedgerState.CLOSED, (OTHER,), True),
        (LedgerState.CLOSED, (OTHER, OTHER), True),
        (LedgerState.CLOSED, (HERE, OTHER), False),
        (LedgerState.CLOSED, (OTHER, HERE), False),
        (LedgerState.OPEN, (OTHER,), False),
        (LedgerState.IN_RECOVERY, (OTHER,), False),
    ],
)
def test_only_a_closed_ledger_that_names_others_is_moved(
    state: LedgerState, bookies: tuple[BookieId, ...], is_moved: bool
) -> None:
    async def main(sim: Simulation) -> None:
        runtime, uri = sim.host("a").runtime, parse_uri("memory:x")
        async with open_store(uri, runtime=runtime) as store:
            cluster = await init_cluster(store, uri, runtime)
            metadata = LedgerMetadata(Quorum(1, 1, 1), fragments(*bookies), state, EntryId(15))
            ledger = (await cluster.ledgers.create(metadata)).ledger_id
            moved = MovedLedgers(cluster, runtime, HERE)
            assert await moved.is_moved(ledger) is is_moved
            async with moved.certainly(ledger) as certain:
                assert certain is is_moved
            assert not await moved.is_moved(LedgerId(99)), "a deleted one is none of its business"

    simulate(1, main)


def test_a_ledger_that_somebody_copies_is_left_alone() -> None:
    """The lock is held from before the first copy until after the metadata names the taker."""

    async def main(sim: Simulation) -> None:
        runtime, uri = sim.host("a").runtime, parse_uri("memory:y")
        async with open_store(uri, runtime=runtime) as store, open_store(uri, runtime=runtime) as other:
            cluster = await init_cluster(store, uri, runtime)
            metadata = LedgerMetadata(Quorum(1, 1, 1), fragments(OTHER), LedgerState.CLOSED, EntryId(5))
            stored = await cluster.ledgers.create(metadata)
            moved = MovedLedgers(cluster, runtime, HERE)
            worker = Underreplication(other, uri.root, runtime, "worker")
            async with worker.locked(stored.ledger_id) as is_ours:
                assert is_ours
                async with moved.certainly(stored.ledger_id) as certain:
                    assert not certain
                await cluster.ledgers.update(stored, lambda found: found.updated(fragments=fragments(HERE)))
            async with moved.certainly(stored.ledger_id) as certain:
                assert not certain, "it came here meanwhile"

    simulate(1, main)
