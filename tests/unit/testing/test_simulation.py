"""`Simulation`: hosts that live, crash and come back, all from one seed."""

import asyncio
from typing import ClassVar

import pytest

from quire.runtime import replace_file
from quire.testing import SimDeadlock, SimHost, SimStuck, Simulation, simulate


def test_a_host_has_one_identity_and_its_own_luck() -> None:
    async def main(sim: Simulation) -> tuple[bytes, bytes]:
        one, two = sim.host("one"), sim.host("two")
        assert sim.host("one") is one
        return one.rng.bytes(8), two.rng.bytes(8)

    first, second = simulate(1, main)
    assert first != second
    assert simulate(1, main) == (first, second)
    assert simulate(2, main) != (first, second)


def test_the_luck_of_a_host_does_not_depend_on_the_others() -> None:
    async def alone(sim: Simulation) -> bytes:
        return sim.host("one").rng.bytes(8)

    async def in_company(sim: Simulation) -> bytes:
        await replace_file(sim.host("zero").disk, "/file", sim.host("zero").rng.bytes(100))
        return sim.host("one").rng.bytes(8)

    assert simulate(1, alone) == simulate(1, in_company)


def test_wall_clocks_may_differ_and_change_while_time_is_one() -> None:
    async def main(sim: Simulation) -> None:
        right, wrong = sim.host("right").runtime.clock, sim.host("wrong").runtime.clock
        sim.host("wrong").clock.skew_ms = -5000
        start = right.wall_ms()
        assert wrong.wall_ms() == start - 5000
        await right.sleep(60)
        assert (right.wall_ms(), wrong.wall_ms()) == (start + 60_000, start + 55_000)
        sim.host("wrong").clock.skew_ms = 7
        assert wrong.wall_ms() == start + 60_007
        assert right.monotonic() == wrong.monotonic() == 60

    simulate(1, main)


async def _program(host: SimHost, log: list[str]) -> None:
    """Runs for ever, with a task of its own, and tries to leave a mark on the disk when it is stopped."""
    disk = host.runtime.disk

    async def helper() -> None:
        try:
            await asyncio.sleep(1_000_000)
        finally:
            log.append("helper ended")

    log.append("started")
    keep = asyncio.create_task(helper())
    try:
        await keep
    finally:
        try:
            await replace_file(disk, "/clean-shutdown", b"")
        except OSError:
            log.append("disk was gone")


@pytest.mark.parametrize("power_loss", [True, False])
def test_a_crash_ends_all_tasks_of_a_host_and_lets_none_touch_its_disk(power_loss: bool) -> None:
    async def main(sim: Simulation) -> None:
        log: list[str] = []
        host, other = sim.host("crashing"), sim.host("other")
        untouched = other.spawn(asyncio.sleep(100, "untouched"))
        host.spawn(_program(host, log))
        await asyncio.sleep(10)
        old = host.runtime
        await host.crash(power_loss=power_loss)
        assert sorted(log) == ["disk was gone", "helper ended", "started"]
        assert await host.disk.listdir("/") == []
        with pytest.raises(OSError, match="stopped"):
            await old.disk.listdir("/")
        with pytest.raises(OSError, match="crashed"):
            await old.network.connect("other", 1, asyncio.Protocol, timeout_s=1)
        assert await untouched == "untouched"
        log.clear()
        host.spawn(_program(host, log))
        await asyncio.sleep(1)
        assert log == ["started"]

    for seed in range(10):
        simulate(seed, main)


def test_unstructured_tasks_die_with_their_host_too() -> None:
    async def tick(log: list[float]) -> None:
        for _ in range(1000):
            await asyncio.sleep(1)
            log.append(asyncio.get_running_loop().time())

    async def start(log: list[float], keep: list[object]) -> None:
        keep.append(asyncio.create_task(tick(log)))

    async def main(sim: Simulation) -> None:
        log: list[float] = []
        keep: list[object] = []
        await sim.host("one").spawn(start(log, keep))
        await asyncio.sleep(10.5)
        await sim.host("one").crash()
        await asyncio.sleep(100)
        assert len(log) == 10

    simulate(1, main)


def test_what_dying_tasks_raise_is_dropped() -> None:
    async def die_badly() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            raise RuntimeError("last words")

    async def main(sim: Simulation) -> None:
        sim.host("one").spawn(die_badly())
        await asyncio.sleep(1)
        await sim.host("one").crash()
        await asyncio.sleep(1)

    simulate(1, main)


def test_a_task_that_ignores_the_crash_is_named() -> None:
    mortal = asyncio.Event()

    async def ignore_cancellation() -> None:
        while not mortal.is_set():
            try:
                await mortal.wait()
            except asyncio.CancelledError:
                continue

    async def main(sim: Simulation) -> None:
        sim.host("one").spawn(ignore_cancellation(), name="immortal")
        await asyncio.sleep(1)
        with pytest.raises(SimStuck, match=r"tasks of one outlive its crash:\n  immortal: .*ignore_cancellation "):
            await sim.host("one").crash()
        mortal.set()

    simulate(1, main)


def test_a_host_may_crash_itself() -> None:
    async def suicidal(host: SimHost, log: list[str]) -> None:
        await host.crash()
        log.append("back")

    async def main(sim: Simulation) -> list[str]:
        log: list[str] = []
        host = sim.host("one")
        host.spawn(asyncio.sleep(1000))
        await host.spawn(suicidal(host, log))
        return log

    assert simulate(1, main) == ["back"]


def test_a_failure_of_a_living_hosts_task_fails_the_run() -> None:
    async def main(sim: Simulation) -> None:
        task = sim.host("one").spawn(asyncio.Event().wait(), name="one's task")
        await task

    with pytest.raises(SimDeadlock, match="one's task"):
        simulate(1, main)


def test_a_task_that_bytes_start_belongs_to_the_host_that_got_them() -> None:
    """A server's protocol answers from a task. The client's crash must not end it, nor the server's the client's."""

    class Answering(asyncio.Protocol):
        tasks: ClassVar[list[asyncio.Task[None]]] = []

        def data_received(self, data: bytes) -> None:
            self.tasks.append(asyncio.get_running_loop().create_task(self.think()))

        async def think(self) -> None:
            await asyncio.sleep(5)

    async def main(sim: Simulation) -> None:
        client, server = sim.host("client"), sim.host("server")

        async def serve() -> None:
            async with await server.runtime.network.serve("server", 1, Answering):
                await asyncio.Event().wait()

        async def ask() -> None:
            transport, _ = await client.runtime.network.connect("server", 1, asyncio.Protocol, timeout_s=5)
            transport.write(b"?")
            await asyncio.Event().wait()

        server.spawn(serve())
        await asyncio.sleep(0.1)
        client.spawn(ask())
        await asyncio.sleep(1)
        (thinking,) = Answering.tasks
        await client.crash()
        assert not thinking.done()
        await server.crash()
        assert thinking.cancelled()

    simulate(1, main)
