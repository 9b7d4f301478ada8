"""The transport on real sockets, with both event loops that Quire runs on, and in simulations of several seeds."""

import asyncio

import pytest
import uvloop

from quire.runtime import real_runtime
from quire.testing import Simulation, simulate
from tests.contract.serving.world import WORLDS, Check, OnWorld, world


@pytest.fixture(params=WORLDS)
def on_world(request: pytest.FixtureRequest) -> OnWorld:
    """Runs a check in one world."""

    async def real(check: Check) -> None:
        runtime = real_runtime()
        async with asyncio.timeout(60), world(runtime, runtime, "127.0.0.1") as made:
            await check(made)

    async def simulated(sim: Simulation, check: Check) -> None:
        async with world(sim.host("client").runtime, sim.host("proxy").runtime, "proxy") as made:
            await check(made)

    def run(check: Check) -> None:
        if request.param == "sockets":
            asyncio.run(real(check))
        elif request.param == "uvloop":
            uvloop.run(real(check))
        else:
            simulate(int(request.param.removeprefix("sim-")), lambda sim: simulated(sim, check))

    return run
