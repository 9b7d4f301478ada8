"""Everything that waits, writes or sends, in one value: hand a component a `Runtime`, real or simulated."""

from quire.runtime.clock import AsyncioClock, Clock
from quire.runtime.disk import Disk
from quire.runtime.network import AsyncioNetwork, Network
from quire.runtime.os_disk import OsDisk
from quire.runtime.rng import Rng, SystemRng
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Runtime:
    """The four seams of one machine. Whoever builds a runtime closes its disk."""

    clock: Clock
    disk: Disk
    network: Network
    rng: Rng


def real_runtime() -> Runtime:
    """This machine, through asyncio and a pool of threads that starts when the disk is first used."""
    return Runtime(clock=AsyncioClock(), disk=OsDisk(), network=AsyncioNetwork(), rng=SystemRng())
