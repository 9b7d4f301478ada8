"""How long a decommission says that it will take, against how long it takes."""

import pytest

from quire.app.decommission import Progress, decommission
from quire.app.inventory import Target, open_operations
from quire.ledger.client import open_ledgers
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import bookie_id
from tests.support.simulation.ledgers import SETTINGS
from tests.support.simulation.world import STORE_SETTINGS, URI

LEDGERS, ENTRIES, ENTRY_BYTES = 12, 10, 1000
BYTES_PER_S = 2000.0


def test_what_is_left_and_how_long_it_takes_is_told_all_the_way() -> None:
    """Method: four bookies, every ledger on three of them, a limited rate: so time goes with bytes."""
    told: list[tuple[float, Progress]] = []

    async def main(sim: Simulation) -> float:
        async with sim_cluster(sim) as cluster:
            bookies = [SimBookie(sim, f"b{number}", cluster) for number in range(4)]
            for bookie in bookies:
                await bookie.start()
            runtime = sim.host("client").runtime
            async with open_ledgers(URI, settings=SETTINGS, store_settings=STORE_SETTINGS, runtime=runtime) as ledgers:
                for _ in range(LEDGERS):
                    async with ledgers.create() as writer:
                        await writer.append_many([bytes(ENTRY_BYTES)] * ENTRIES)
            await bookies[0].stop()
            host = sim.host("operator")
            async with open_operations(Target(URI), runtime=host.runtime) as operations:
                done = await decommission(
                    operations,
                    bookie_id("b0"),
                    bytes_per_s=BYTES_PER_S,
                    on_progress=lambda at: told.append((host.clock.monotonic(), at)),
                )
            assert done.left == ()
            ended_s = host.clock.monotonic()
            for bookie in bookies[1:]:
                await bookie.stop()
            return ended_s

    ended_s = simulate(1, main, time_limit_s=1000.0)
    held = told[0][1].ledgers
    assert held > 4
    assert told[-1][1] == Progress(held, 0, 0, 0.0)
    lefts = [at.bytes_left for _, at in told]
    assert lefts == sorted(lefts, reverse=True)
    copying = [(now_s, at) for now_s, at in told if 0 < at.bytes_left <= held * ENTRIES * ENTRY_BYTES / 2]
    assert copying
    for now_s, at in copying:
        assert at.seconds_left == pytest.approx(ended_s - now_s, rel=0.25, abs=2 * ENTRIES * ENTRY_BYTES / BYTES_PER_S)
        assert at.seconds_left == pytest.approx(at.bytes_left / BYTES_PER_S, rel=0.35)
