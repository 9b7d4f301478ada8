"""A simulated program that would show any dependence on hash order, memory addresses or earlier runs. Prints its trace.

Sets of tasks are iterated by asyncio itself: `TaskGroup` cancels its children from a set, `asyncio.wait` returns sets.
"""

import asyncio
import sys

from quire.runtime import read_file, replace_file
from quire.testing import SimHost, Simulation


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)


class Count(asyncio.Protocol):
    def __init__(self) -> None:
        self.count = 0
        self.lost = asyncio.Event()

    def data_received(self, data: bytes) -> None:
        self.count += len(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


async def _serve(host: SimHost) -> None:
    async with await host.runtime.network.serve("", 1, Echo):
        for number in range(1000):
            await replace_file(host.runtime.disk, "/mark", host.rng.bytes(8) + str(number).encode())


async def _call(host: SimHost, sim: Simulation) -> int:
    try:
        transport, protocol = await host.runtime.network.connect("server", 1, Count, timeout_s=5)
    except OSError:
        return -1
    for _ in range(10):
        transport.write(host.rng.bytes(100))
        await asyncio.sleep(0.001)
    transport.close()
    await protocol.lost.wait()
    return protocol.count


async def _cancelled_group(sim: Simulation) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(asyncio.Event().wait())
            await asyncio.sleep(0.1)
            raise LookupError
    except* LookupError:
        pass


async def main(sim: Simulation) -> None:
    sim.network.loss_probability = 0.001
    server = sim.host("server")
    for _ in range(3):
        server.spawn(_serve(server))
        calls = {asyncio.create_task(_call(sim.host(f"client {number}"), sim)) for number in range(8)}
        await _cancelled_group(sim)
        done, _ = await asyncio.wait(calls, timeout=sim.rng.random() * 0.1)
        for call in done:  # A set, and its order shows in the trace.
            sim.loop.trace(f"result {call.result()}")
        await server.crash()
        if await server.disk.exists("/mark"):
            sim.loop.trace((await read_file(server.disk, "/mark")).hex())
        await asyncio.wait(calls)


if __name__ == "__main__":
    simulation = Simulation(int(sys.argv[1]))
    simulation.run(main)
    print(simulation.trace_digest(), simulation.loop.steps)
