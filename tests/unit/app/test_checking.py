"""How long `quire check` waits for bookies that say nothing. Time is simulated, by `quire.testing`."""

import asyncio

from tests.support.simulation.repair_scene import RepairScene, on_world
from tests.support.simulation.world import URI

from quire.app.checking import check
from quire.app.inventory import Target, open_operations


def test_a_bookie_that_cannot_be_reached_is_waited_for_once_and_not_for_each_ledger() -> None:
    async def scene(world: RepairScene) -> None:
        async with world.ledgers("writer") as ledgers:
            written = [await world.ledger(ledgers, 3) for _ in range(20)]
        victim = await world.member(written[0])

        async def operator() -> None:
            async with open_operations(Target(URI), runtime=world.sim.host("operator").runtime) as operations:
                world.sim.network.partition("operator", victim.host.name)
                loop = asyncio.get_running_loop()
                began_s = loop.time()
                checked = await check(operations, exclusive=False, thorough=False)
                assert loop.time() - began_s < 2 * operations.timeout_s
                assert {each.ledger_id for each in checked.findings} == set(written)  # Each has a copy there.

        await world.sim.host("operator").spawn(operator(), name="operator")

    on_world(scene, bookies=3)
