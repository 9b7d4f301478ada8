"""Bookies as processes of their own, for benchmarks: what they cost is what their processes used."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from quire.errors import BookieFailed, QuireError
from quire.metadata import Cluster
from quire.rpc.channel import BookieChannel
from quire.runtime import Runtime
from quire.types import BookieId
from quire.values import dataclass

_TICKS = os.sysconf("SC_CLK_TCK")
_START_WITHIN_S = 30.0


def process_cpu_s(pid: int) -> float:
    """What a process has used so far, in steps of a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def no_collections() -> Iterator[None]:
    """This process looks for no garbage for the block. Its own pauses, of up to 150 ms with all that a benchmark writes
    down, would be taken for those of what it measures.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class BookieProcess:
    """A bookie that runs, and what it has used."""

    runtime: Runtime
    pid: int
    host: str
    port: int

    def cpu_s(self) -> float:
        return process_cpu_s(self.pid)

    async def connect(self) -> BookieChannel:
        return await BookieChannel.connect(self.runtime, self.host, self.port)


@asynccontextmanager
async def running_bookie(
    runtime: Runtime, cluster: Cluster, folder: str, *, name: str = "bench", old_port: int = 0
) -> AsyncIterator[BookieProcess]:
    """A process, once it is registered; not with `old_port`, where a dead one was."""
    log = Path(folder, f"{name}.log")
    with open(log, "ab") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quire", "bookie", "run", "--metadata", cluster.uri.text, "--id", name),
            *("--data", f"{folder}/{name}", "--listen", "127.0.0.1:0", "--admin", "none"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        host, port = await _registered(runtime, cluster, BookieId(name), process, log, old_port)
        yield BookieProcess(runtime, process.pid, host, port)
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _registered(
    runtime: Runtime,
    cluster: Cluster,
    bookie: BookieId,
    process: asyncio.subprocess.Process,
    log: Path,
    old_port: int,
) -> tuple[str, int]:
    deadline_s = runtime.clock.monotonic() + _START_WITHIN_S
    while process.returncode is None and runtime.clock.monotonic() < deadline_s:
        try:
            endpoint = (await cluster.bookies.service_info(bookie)).rpc_endpoint
        except QuireError:
            endpoint = None
        if endpoint is not None and endpoint.port != old_port:
            return endpoint.host, endpoint.port
        await runtime.clock.sleep(0.05)
    printed = await asyncio.to_thread(log.read_text)
    raise BookieFailed(f"the bookie did not start: {printed[-500:]}")
