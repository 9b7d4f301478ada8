"""`real_runtime` puts the real implementations together, and a simulated host fits in the same place."""

from quire.runtime import AsyncioClock, AsyncioNetwork, OsDisk, Runtime, SystemRng, real_runtime
from quire.testing import Simulation


def test_the_real_runtime_is_real() -> None:
    runtime = real_runtime()
    assert isinstance(runtime.clock, AsyncioClock)
    assert isinstance(runtime.disk, OsDisk)
    assert isinstance(runtime.network, AsyncioNetwork)
    assert isinstance(runtime.rng, SystemRng)


def test_a_simulated_host_has_a_runtime_of_its_own() -> None:
    sim = Simulation(1)
    one, two = sim.host("one").runtime, sim.host("two").runtime
    assert isinstance(one, Runtime)
    assert one == sim.host("one").runtime
    assert one.disk is not two.disk
    assert one.network is not two.network
