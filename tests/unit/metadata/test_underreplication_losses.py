"""Votes and locks whose answers are lost: nobody waits for ever behind a node that nobody knows of."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest
from tests.support.simulation.world import STORE_SETTINGS, URI

from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, VersionConflict
from quire.metadata import Cluster, Create, open_cluster
from quire.metadata.driver import Op, SessionId, Written
from quire.metadata.underreplication import Underreplication
from quire.testing import Simulation, sim_cluster, sim_tree, simulate
from quire.testing.sim_metadata import SimTree
from quire.types import LedgerId

SEVEN = LedgerId(7)
STALL_S = 3.5  # Longer than a call waits, shorter than a session lasts.


def test_a_vote_of_which_nobody_knows_is_taken_back() -> None:
    """Method: a vote is stored, its answer is lost, and the store is away until the voter has given up."""

    async def check(tree: SimTree, first: Underreplication, second: Underreplication) -> None:
        stored = _stall_after(tree, "auditorelection/V_")
        with pytest.raises(MetadataUnavailable):
            async with first.elected():
                raise AssertionError("nobody could look who is the auditor")
        assert stored.is_set()
        async with asyncio.timeout(20.0), second.elected():
            assert await first.auditor() == "second"

    _with_two(check)


def test_whoever_votes_anew_does_not_wait_behind_its_own_old_vote_or_lose_the_new_one() -> None:
    """Method: as before, and the same one stands again at once, while its old vote is still to be taken back."""

    async def check(tree: SimTree, first: Underreplication, second: Underreplication) -> None:
        stored = _stall_after(tree, "auditorelection/V_")
        for _ in range(2):
            try:
                async with asyncio.timeout(30.0), first.elected() as vote:
                    await asyncio.sleep(10.0)
                    assert [first._path("auditorelection", name) for _, name in await second._votes()] == [vote]
            except MetadataUnavailable:
                assert stored.is_set()
        assert await second.auditor() is None

    _with_two(check)


def test_a_lock_of_which_nobody_knows_is_given_back() -> None:
    async def check(tree: SimTree, first: Underreplication, second: Underreplication) -> None:
        await second.mark(SEVEN, ["a"])
        stored = _stall_after(tree, "underreplication/locks/")
        with pytest.raises(MetadataUnavailable):
            await first.take()
        assert stored.is_set()
        await asyncio.sleep(10.0)
        assert await second.take() is not None

    _with_two(check)


def test_a_lock_that_is_taken_anew_is_not_given_back_with_the_old_one() -> None:
    """Method: the answer to the removal of a lock is lost, so that it is tried again; meanwhile it is taken anew."""

    async def check(tree: SimTree, first: Underreplication, second: Underreplication) -> None:
        await second.mark(SEVEN, ["a"])
        held = await first.take()
        assert held is not None
        tree.lose_answers("first", 1)
        await first.release(held)
        assert await second.lock_holder(SEVEN) is None
        again = await first.take()
        assert again is not None
        await asyncio.sleep(10.0)
        assert await second.take() is None
        await first._store.transaction(again.lock.guard())
        await first.release(again)
        assert await second.take() is not None
        with pytest.raises(VersionConflict):
            await first._store.transaction(again.lock.guard())

    _with_two(check)


# --- Steps


def _with_two(check: Callable[[SimTree, Underreplication, Underreplication], Awaitable[None]]) -> None:
    """Run a check, on the host `first`, with a handle there and one on `second`."""

    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            tree = sim_tree(cluster)
            opened: asyncio.Future[Underreplication] = asyncio.get_running_loop().create_future()

            async def other() -> None:
                async with open_cluster(URI, settings=STORE_SETTINGS, runtime=sim.host("second").runtime) as found:
                    opened.set_result(_marks(found, sim, "second"))
                    await asyncio.Event().wait()

            async def run() -> None:
                async with open_cluster(URI, settings=STORE_SETTINGS, runtime=sim.host("first").runtime) as found:
                    first = _marks(found, sim, "first")
                    await first.prepare()
                    await check(tree, first, await opened)

            staying = sim.host("second").spawn(other(), name="second")
            await sim.host("first").spawn(run(), name="first")
            staying.cancel()
            await asyncio.wait([staying])

    simulate(1, main, time_limit_s=200.0)


def _marks(cluster: Cluster, sim: Simulation, name: str) -> Underreplication:
    return Underreplication(cluster.store, cluster.uri.root, sim.host(name).runtime, name)


def _stall_after(tree: SimTree, created: str) -> asyncio.Event:
    """Cut `first` off in the moment in which it has created such a node, before it is told. Set when that is done."""
    commit, done = tree.commit, asyncio.Event()

    def watched(ops: Sequence[Op], session: SessionId, now_ms: int) -> list[Written | None]:
        written = commit(ops, session, now_ms)
        if not done.is_set() and any(isinstance(op, Create) and created in op.path for op in ops):
            done.set()
            tree.stall("first", STALL_S)
            raise MetadataOutcomeUnknown("the answer was lost with the connection")
        return written

    tree.commit = watched  # type: ignore[method-assign]
    return done
