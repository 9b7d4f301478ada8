"""The simulated world finds mistakes: a correct replicated log passes every seed, each careless one fails on some."""

import asyncio
import os

import pytest

from quire.runtime import read_file
from quire.testing import SimHost, Simulation, simulate
from tests.simulation.replicated_log import LOG, Flaw, Node, Writer, decode

SEEDS = range(1000 if os.environ.get("QUIRE_TEST_LONG") else 50)
NODES = ["n1", "n2"]
RECORDS = 100


async def _supervise(host: SimHost, flaw: Flaw) -> None:
    """Run the node; when its disk fails, let the machine or only the process die, and start it again."""
    while True:
        task = host.spawn(Node(host.runtime, flaw).run(), name=f"node {host.name}")
        await asyncio.wait([task])
        if not task.cancelled() and not isinstance(task.exception(), OSError):
            task.result()
        await host.crash(power_loss=host.rng.random() < 0.5)


async def _break_things(sim: Simulation) -> None:
    """One fault after the other, each from the seed."""
    while True:
        await asyncio.sleep(sim.rng.random() * 0.3)
        host = sim.host(sim.rng.choice(NODES))
        match sim.rng.randrange(6):
            case 0 | 1:
                await host.crash()
            case 2:
                await host.crash(power_loss=False)
            case 3:
                host.disk.faults.fail_next("sync")
            case 4:
                sim.network.reset_all(host.name)
            case 5:
                sim.network.partition("writer", host.name, one_way=sim.rng.random() < 0.5)
                await asyncio.sleep(sim.rng.random())
                sim.network.heal()


async def _check_logs(sim: Simulation, writer: Writer) -> None:
    """AckedIsDurable and ConfirmedIsTwice, after the power has failed everywhere."""
    for name in NODES:
        host = sim.host(name)
        content = await read_file(host.disk, LOG) if await host.disk.exists(LOG) else b""
        numbers = []
        for number, payload, _ in decode(content):
            numbers.append(number)
            assert payload == writer.record(number), f"{name} holds another record {number} than was written"
        assert numbers == list(range(len(numbers))), f"{name} has gaps or repeats: {numbers}"
        assert len(numbers) >= writer.acked[name], (
            f"{name} acknowledged {writer.acked[name]} records and holds {len(numbers)}"
        )


async def workload(sim: Simulation, flaw: Flaw) -> int:
    """Write while things break, then check; returns how many records were confirmed."""
    sim.network.loss_probability = 0.002
    for name in NODES:
        # Slower than the network: most of the time something is written and not synced, or synced and not acknowledged.
        sim.host(name).disk.faults.latency_by_operation_s["sync"] = (0.001, 0.04)
    supervisors = [asyncio.create_task(_supervise(sim.host(name), flaw)) for name in NODES]
    trouble = asyncio.create_task(_break_things(sim))
    client = sim.host("writer")
    writer = Writer(client.runtime, NODES)
    writing = client.spawn(writer.run())
    for number in range(RECORDS):
        writer.append(b"%06d" % number + sim.rng.bytes(sim.rng.randrange(1500)))
        if sim.rng.random() < 0.5:
            await asyncio.sleep(sim.rng.random() * 0.05)
    trouble.cancel()
    await asyncio.wait([trouble])
    sim.network.heal()
    sim.network.loss_probability = 0.0
    for name in NODES:
        sim.host(name).disk.faults.repair()
    if flaw is Flaw.NONE:
        async with asyncio.timeout(60):  # A correct log also gets done once nothing breaks any more.
            await writer.wait_confirmed()
    for task in (*supervisors, writing):
        task.cancel()
    await asyncio.wait([*supervisors, writing])
    for name in NODES:
        await sim.host(name).crash()
    await _check_logs(sim, writer)
    return len(writer.confirmed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_acknowledged_record_is_lost(seed: int) -> None:
    assert simulate(seed, lambda sim: workload(sim, Flaw.NONE)) == RECORDS


@pytest.mark.parametrize("flaw", [flaw for flaw in Flaw if flaw is not Flaw.NONE], ids=lambda flaw: flaw.name)
def test_each_careless_node_is_caught_by_some_seed(flaw: Flaw) -> None:
    def is_caught(seed: int) -> bool:
        try:
            simulate(seed, lambda sim: workload(sim, flaw))
        except AssertionError as error:
            return f"seed {seed}" in "".join(error.__notes__)
        return False

    assert any(is_caught(seed) for seed in range(100)), f"no seed finds a node that {flaw.value}"


def test_a_seed_repeats_the_whole_workload() -> None:
    def trace(seed: int) -> str:
        sim = Simulation(seed)
        sim.run(lambda sim: workload(sim, Flaw.NONE))
        return sim.trace_digest()

    assert trace(7) == trace(7)
    assert trace(7) != trace(8)
