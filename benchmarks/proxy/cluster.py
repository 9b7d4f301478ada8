"""A local cluster for benchmarks of proxies: `quire up` as a process, and what each of its processes used."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.processes import process_cpu_s
from quire.errors import Unavailable
from quire.telemetry import names
from quire.values import dataclass

BOOKIE, WRITE_PROXY, READ_PROXY = "bookie", "write-proxy", "read-proxy"

_START_WITHIN_S: Final = 60.0
_ANSWER_WITHIN_S: Final = 10.0
_STORAGE_READS: Final = (names.READ_ENTRY_REQUEST, names.READ_ENTRY_LONG_POLL_REQUEST)


@dataclass(frozen=True, slots=True)
class Service:
    """One process of the cluster."""

    kind: str
    pid: int
    address: str
    admin: str


@dataclass(frozen=True, slots=True)
class ProxyCluster:
    """Three bookies, a write proxy and a read proxy."""

    uri: str
    direct_uri: str
    services: Sequence[Service]

    def address(self, kind: str) -> str:
        """Where the first one of a kind listens."""
        return self._of(kind)[0].address

    def cpu_s(self, kind: str) -> float:
        """What all processes of a kind have used so far."""
        return sum(process_cpu_s(service.pid) for service in self._of(kind))

    def memory_bytes(self, kind: str) -> int:
        """What they have in memory now."""
        return sum(_resident_bytes(service.pid) for service in self._of(kind))

    async def storage_reads(self) -> int:
        """Answers of bookies to reads that had entries to give, or a wait behind them, as the bookies count them."""
        found = [await _metrics(service.admin) for service in self._of(BOOKIE)]
        return round(
            sum(metrics.get(f'{name.name}_count{{success="true"}}', 0) for metrics in found for name in _STORAGE_READS)
        )

    async def entries_read(self) -> int:
        """Entries that read proxies were given by bookies."""
        return await self._sum(READ_PROXY, names.READ_PROXY_READ_ENTRIES_TOTAL.name)

    async def messages_sent(self) -> int:
        """Messages that read proxies sent to readers."""
        return await self._sum(READ_PROXY, names.READ_PROXY_MESSAGES_TOTAL.name)

    async def cache_bytes(self) -> int:
        """What read proxies keep for readers to share."""
        return await self._sum(READ_PROXY, f'{names.READ_PROXY_CACHE_BYTES.name}{{pool="tail"}}')

    async def _sum(self, kind: str, metric: str) -> int:
        return round(sum([(await _metrics(service.admin)).get(metric, 0) for service in self._of(kind)]))

    def _of(self, kind: str) -> list[Service]:
        return [service for service in self.services if service.kind == kind]


@asynccontextmanager
async def running_cluster(folder: str) -> AsyncIterator[ProxyCluster]:
    """All of it, for the block, with its data in `folder`. Raises `Unavailable` if it does not start."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "quire", "up", "--data", f"{folder}/data", "--json", "--proxy-port", "0"),
        *("--write-proxies", "1", "--read-proxies", "1"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "XDG_STATE_HOME": folder},  # It is nobody's default cluster.
    )
    try:
        yield await _started(process)
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
        await process.communicate()


async def _started(process: asyncio.subprocess.Process) -> ProxyCluster:
    assert process.stdout is not None
    printed = b""
    try:
        async with asyncio.timeout(_START_WITHIN_S):
            async for line in process.stdout:
                printed += line
                event: dict[str, Any] = json.loads(line) if line.startswith(b"{") else {}
                if event.get("event") == "started":
                    services = [_service(each) for each in event["services"]]
                    return ProxyCluster(event["uri"], event["direct_uri"], services)
    except TimeoutError:
        pass
    raise Unavailable(f"the local cluster did not start: {printed[-500:].decode(errors='replace')}")


def _service(shown: dict[str, Any]) -> Service:
    return Service(shown["kind"], shown["pid"], shown["address"], shown["admin"])


async def _metrics(admin: str) -> dict[str, float]:
    """What a process counts, by name and labels."""

    def ask() -> str:
        with urllib.request.urlopen(f"http://{admin}/metrics", timeout=_ANSWER_WITHIN_S) as answer:
            text: bytes = answer.read()
        return text.decode()

    try:
        lines = (await asyncio.to_thread(ask)).splitlines()
    except OSError as error:
        raise Unavailable(f"http://{admin}/metrics does not answer: {error}") from error
    values = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in values}


def _resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
