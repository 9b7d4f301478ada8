"""`SimBookie`: what a crash and another disk leave of a bookie."""

import pytest

from quire.codec.digest import master_key
from quire.errors import InvariantBroken, WrongDisk
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import LedgerId

LEDGER, KEY = LedgerId(7), master_key(b"")


def test_a_dying_bookie_leaves_nothing_in_its_index() -> None:
    """A fence that is in memory only is lost with the power: no last checkpoint saves it."""

    async def main(sim: Simulation) -> bool:
        async with sim_cluster(sim) as cluster:
            bookie = SimBookie(sim, "b1", cluster)
            storage = (await bookie.start()).service.storage
            storage.fence(LEDGER, KEY)
            await bookie.crash()
            storage = (await bookie.start()).service.storage
            fenced = storage.is_fenced(LEDGER)
            await bookie.stop()
            return fenced

    assert not all(simulate(seed, main) for seed in range(10))


def test_a_bookie_does_not_start_on_another_disk() -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            bookie = SimBookie(sim, "b1", cluster)
            await bookie.start()
            with pytest.raises(InvariantBroken, match="runs"):
                bookie.wipe()
            await bookie.stop()
            bookie.wipe()
            with pytest.raises(WrongDisk):
                await bookie.start()

    simulate(1, main)
