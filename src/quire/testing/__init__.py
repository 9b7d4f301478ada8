"""For your tests and for ours: a log and a cluster to test your own program with, and a simulation of everything.

    from quire.testing import local_cluster, local_log       # also as pytest's fixtures: quire_cluster, quire_log

    with local_cluster("/tmp/some-folder") as cluster:
        program_under_test(cluster.uri)

Those are told of in `quire.testing.local`. The other half is deterministic simulation: virtual time, seeded order, and
disks and networks that fail.

    from quire.testing import Simulation, simulate

    async def main(sim: Simulation) -> None: ...

    for seed in range(100):
        simulate(seed, main)

A failure names its seed, and the same seed fails the same way.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from quire.testing.disk_faults import DiskFaults
    from quire.testing.local import EmbeddedLog, LocalBookie, LocalCluster, local_cluster, local_log
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
    "EmbeddedLog",
    "LocalBookie",
    "LocalCluster",
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
    "local_cluster",
    "local_log",
    "run",
    "run_on",
    "sim_cluster",
    "sim_tree",
    "simulate",
]

# Where each name is. They are imported when they are used: pytest loads a module of this package in each of its runs,
# and whoever wants a cluster does not wait for the simulation.
_HOMES = {
    "DiskFaults": "quire.testing.disk_faults",
    "EmbeddedLog": "quire.testing.local",
    "LocalBookie": "quire.testing.local",
    "LocalCluster": "quire.testing.local",
    "SimBookie": "quire.testing.sim_bookie",
    "SimClock": "quire.testing.sim_clock",
    "SimDeadlock": "quire.testing.sim_errors",
    "SimDisk": "quire.testing.sim_disk",
    "SimError": "quire.testing.sim_errors",
    "SimFile": "quire.testing.sim_disk",
    "SimHost": "quire.testing.simulation",
    "SimHostNetwork": "quire.testing.sim_network",
    "SimIndex": "quire.testing.sim_index",
    "SimIndexFolder": "quire.testing.sim_index",
    "SimLoop": "quire.testing.sim_loop",
    "SimNetwork": "quire.testing.sim_network",
    "SimRefused": "quire.testing.sim_errors",
    "SimRng": "quire.testing.sim_rng",
    "SimServer": "quire.testing.sim_network",
    "SimStuck": "quire.testing.sim_errors",
    "SimTransport": "quire.testing.sim_transport",
    "SimTree": "quire.testing.sim_metadata",
    "SimUnhandled": "quire.testing.sim_errors",
    "Simulation": "quire.testing.simulation",
    "local_cluster": "quire.testing.local",
    "local_log": "quire.testing.local",
    "run": "quire.testing.sim_run",
    "run_on": "quire.testing.sim_run",
    "sim_cluster": "quire.testing.sim_bookie",
    "sim_tree": "quire.testing.sim_metadata",
    "simulate": "quire.testing.simulation",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'quire.testing' has no attribute {name!r}")
    found: object = getattr(import_module(home), name)
    globals()[name] = found  # The next use finds it without us.
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
