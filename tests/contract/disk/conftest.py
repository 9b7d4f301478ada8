"""Every implementation of `Disk`, each with a folder to work in. One suite runs on all of them."""

import asyncio
from pathlib import Path

import pytest

from quire.runtime import Disk, OsDisk
from quire.testing import Simulation, simulate
from quire.testing.unsynced_disk import UnsyncedDisk
from tests.contract.disk.checks import Check, OnDisk


@pytest.fixture(params=["os", "os without pages", "os without syncs", "sim-1", "sim-2", "sim-3"])
def on_disk(request: pytest.FixtureRequest, tmp_path: Path) -> OnDisk:
    """Runs a check on a disk: the real one on a real loop, the simulated one under several seeds."""

    async def real(check: Check) -> None:
        disk: Disk
        if request.param == "os without syncs":
            disk = UnsyncedDisk()
        else:
            disk = OsDisk(threads_max=4, keeps_pages=request.param == "os")
        try:
            await check(disk, str(tmp_path))
        finally:
            await disk.aclose()

    async def simulated(sim: Simulation, check: Check) -> None:
        disk = sim.host("machine").disk
        await disk.makedirs("/data")
        await check(disk, "/data")

    def run(check: Check) -> None:
        if request.param.startswith("os"):
            asyncio.run(real(check))
        else:
            simulate(int(request.param.removeprefix("sim-")), lambda sim: simulated(sim, check))

    return run
