"""Deterministic simulation, for our tests and for yours: virtual time, seeded order, disks and networks that fail.

    from quire.testing import Simulation, simulate

    async def main(sim: Simulation) -> None: ...

    for seed in range(100):
        simulate(seed, main)

A failure names its seed, and the same seed fails the same way.
"""

from quire.testing.disk_faults import DiskFaults
from quire.testing.sim_bookie import SimBookie, sim_cluster
from quire.testing.sim_clock import SimClock
from quire.testing.sim_disk import SimDisk, SimFile
from quire.testing.sim_errors import SimDeadlock, SimError, SimRefused, SimStuck, SimUnhandled
from quire.testing.sim_index import SimIndex, SimIndexFolder
from quire.testing.sim_loop import SimLoop
from quire.testing.sim_metadata import SimTree, sim_tree
from quire.testing.sim_network import SimHostNetwork, SimNetwork, SimServer
from quire.testing.sim_rng import SimRng
from quire.testing.sim_run import run, run_on
from quire.testing.sim_transport import SimTransport
from quire.testing.simulation import SimHost, Simulation, simulate

__all__ = [
    "DiskFaults",
    "SimBookie",
    "SimClock",
    "SimDeadlock",
    "SimDisk",
    "SimError",
    "SimFile",
    "SimHost",
    "SimHostNetwork",
    "SimIndex",
    "SimIndexFolder",
    "SimLoop",
    "SimNetwork",
    "SimRefused",
    "SimRng",
    "SimServer",
    "SimStuck",
    "SimTransport",
    "SimTree",
    "SimUnhandled",
    "Simulation",
    "run",
    "run_on",
    "sim_cluster",
    "sim_tree",
    "simulate",
]
