"""Every implementation of `Network`. One suite runs on all of them."""

import asyncio

import pytest

from quire.runtime import AsyncioNetwork, LocalNetwork, Network
from quire.testing import Simulation, simulate
from tests.support.network_checks import NETWORKS, Check, OnNetwork

REAL: dict[str, type[Network]] = {"asyncio": AsyncioNetwork, "local": LocalNetwork}


@pytest.fixture(params=NETWORKS)
def on_network(request: pytest.FixtureRequest) -> OnNetwork:
    """Runs a check: on real sockets, of the loopback interface and in pairs, and in simulations of several seeds."""

    async def simulated(sim: Simulation, check: Check) -> None:
        await check(sim.host("machine").runtime.network)

    def run(check: Check) -> None:
        if request.param in REAL:
            asyncio.run(check(REAL[request.param]()))
        else:
            simulate(int(request.param.removeprefix("sim-")), lambda sim: simulated(sim, check), time_limit_s=600)

    return run
