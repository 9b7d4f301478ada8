"""Strangers attack a server, each in a way that once stopped it, while somebody appends through the same server.

All appends succeed, and their p99 at most doubles. Quiet turns and attacked ones alternate, so that all else is the
same for both, and the medians of their p99 are compared.

The p99 of quiet turns is one or two milliseconds: what else runs on the machine would hide what the attack does, or be
taken for it. So servers and client run before everything else, if the system allows it, and their data is in memory: a
disk that others use takes long over a new file now and then. An attacker has a machine of its own, and ours has to
share our CPUs: it comes behind all that it attacks, and sends what it made before, at a steady pace, a few connections
a second. Any server has enough of very many; what matters is what each of them may do to others.
"""

import asyncio
import json
import os
import resource
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from tests.support.programs.attacker import record_set
from tests.support.servers.becoming import dying_with_us
from tests.support.servers.local_cluster import LocalCluster
from tests.support.waiting import eventually, paced

import quire
from quire.client import Client
from quire.errors import DamagedEntry
from quire.stream.writer import StreamWriter

pytestmark = pytest.mark.extended

ROOT: Final = Path(__file__).parents[2]
MEMORY: Final = Path("/dev/shm")
SMALL_FILES: Final = ("journal.file_bytes_max=100000", "journal.preallocate_bytes=20000", "log_bytes_max=100000")
DESCRIPTORS_MAX: Final = 1024

TURNS: Final = 6  # Of each kind.
APPENDS: Final = 120  # In a turn.
REST_APPENDS: Final = 20  # Between turns: very many connections come, or go, from one moment to the next there.
PACE_S: Final = 0.005

Append = Callable[[bytes], Awaitable[object]]


class Attacker:
    """`tests.support.programs.attacker`. `seen` is what came of its attacks."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.seen = Counter[str]()

    async def begin(self) -> None:
        assert await self._told() == b"begun\n"

    async def end(self) -> None:
        self.seen.update(json.loads(await self._told()))

    async def _told(self) -> bytes:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return await self._process.stdout.readline()


@asynccontextmanager
async def attacker(kind: str, address: str) -> AsyncIterator[Attacker]:
    command = dying_with_us([sys.executable, "-m", "tests.support.programs.attacker", kind, address])
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"ready\n"
        yield Attacker(process)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Appends:
    """At a steady pace, whether or not those before have been acknowledged. Each has its number as its payload."""

    def __init__(self, append: Append) -> None:
        self._append = append
        self._took_s: list[float] = []  # Infinite until it is acknowledged.
        self._is_over = False

    @property
    def count(self) -> int:
        return len(self._took_s)

    async def run(self) -> None:
        """Until told to end. Raises if one of them fails."""
        async with asyncio.TaskGroup() as group:
            async for _ in paced(PACE_S):
                if self._is_over:
                    return
                group.create_task(self._one(self.count))
                self._took_s.append(inf)

    def end(self) -> None:
        self._is_over = True

    async def _one(self, number: int) -> None:
        begun_s = asyncio.get_running_loop().time()
        await self._append(b"%d" % number)
        self._took_s[number] = asyncio.get_running_loop().time() - begun_s

    async def p99_s(self, count: int) -> float:
        """Of the next ones."""
        turn = slice(self.count, self.count + count)

        async def is_over() -> bool:
            return self.count >= turn.stop and inf not in self._took_s[turn]

        await eventually(is_over, within_s=60)
        return sorted(self._took_s[turn])[count * 99 // 100]


async def besieged(append: Append, kind: str, address: str) -> tuple[int, Counter[str]]:
    """How many appends there were, in turns without and with an attack, and what came of the attacks."""
    appends, quiet_s, attacked_s = Appends(append), list[float](), list[float]()
    async with attacker(kind, address) as enemy, asyncio.TaskGroup() as group:
        group.create_task(appends.run())
        await appends.p99_s(APPENDS)  # The first ones open the stream.
        for _ in range(TURNS):
            quiet_s.append(await appends.p99_s(APPENDS))
            await enemy.begin()
            await appends.p99_s(REST_APPENDS)
            attacked_s.append(await appends.p99_s(APPENDS))
            await enemy.end()
            await appends.p99_s(REST_APPENDS)
        appends.end()
    ratio = median(attacked_s) / median(quiet_s)
    print(f"{kind}: p99 {median(quiet_s) * 1e3:.2f} ms, attacked {median(attacked_s) * 1e3:.2f} ms: {ratio:.2f}")
    assert ratio <= 2, f"quiet {quiet_s}, attacked {attacked_s}"
    return appends.count, enemy.seen


@contextmanager
def ahead_of_others() -> Iterator[None]:
    """This process, and what it starts meanwhile, runs whenever it can, if the system allows that."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """With one of each kind. The bookie opens files often."""
    options = ["--bookies=1", "--gateway=127.0.0.1:0", *(f"--set=storage.{each}" for each in SMALL_FILES)]
    with ahead_of_others(), TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as data:
        folder = tmp_path_factory.mktemp("cluster")
        with LocalCluster(folder, *options, proxies=1, data=Path(data) / "quire-data") as cluster:
            yield cluster


def service(cluster: LocalCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in cluster.wait_for("started")["services"] if each["name"] == name)
    return found


@asynccontextmanager
async def direct_writer(cluster: LocalCluster, stream: str) -> AsyncIterator[StreamWriter]:
    """Past the proxies."""
    async with (
        quire.connect(cluster.wait_for("started")["direct_uri"]) as client,
        client.open_writer(stream, ensemble=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        assert isinstance(writer, StreamWriter)
        yield writer


async def numbers(client: Client, stream: str) -> list[int]:
    """All that was appended, in order."""
    await client.seal_stream(stream)
    async with client.open_reader(stream) as reader:
        return [int(record.payload) async for record in reader]


async def test_floods_of_frames_that_carry_nothing_at_a_write_proxy(cluster: LocalCluster) -> None:
    """Without a token: SETTINGS of very many settings, and SETTINGS, WINDOW_UPDATE and CONTINUATION by the thousand."""
    address = service(cluster, "write-proxy-1")["address"]
    async with cluster.connect() as client:
        async with client.open_writer("flooded") as writer:
            count, seen = await besieged(writer.append, "floods", address)
        assert await numbers(client, "flooded") == list(range(count))
    floods = ("a large SETTINGS", "SETTINGS", "WINDOW_UPDATE", "CONTINUATION")
    assert {outcome.partition(":")[0] for outcome in seen} == set(floods)
    assert {f"{flood}: ENHANCE_YOUR_CALM" for flood in floods} <= set(seen)


async def test_record_sets_that_stand_for_millions_of_records(cluster: LocalCluster) -> None:
    """A proxy refuses them. One that was stored past it costs its readers an error."""
    address = service(cluster, "write-proxy-1")["address"]
    async with cluster.connect() as client:
        async with client.open_writer("bombs-fell") as writer:
            count, seen = await besieged(writer.append, "bombs", address)
        assert await numbers(client, "bombs-fell") == list(range(count))
        assert set(seen) == {"millions: RecordTooLarge", "in disguise: InvalidArgument", "much: RecordTooLarge"}
        assert not await client.stream_exists("bombed")

        bomb, stored = record_set(bytes(200 << 20)), asyncio.Event()
        async with direct_writer(cluster, "bombed") as writer:
            writer.append_tracked([bomb], lambda call: stored.set(), members=50 << 20)
            await stored.wait()
        async with client.open_reader("bombed") as reader:
            with pytest.raises(DamagedEntry):
                await anext(reader)


async def test_slow_bodies_at_the_gateway(cluster: LocalCluster) -> None:
    """More of them than requests, and connections, that a gateway has at a time."""
    services = cluster.wait_for("started")["services"]
    address = next(each["gateway"] for each in services if each["gateway"]).removeprefix("http://")
    host, _, port = address.partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    turn = asyncio.Lock()  # One request after the other, in the order in which they were begun.

    async def append(payload: bytes) -> None:
        async with turn:
            head = f"POST /v1/default/streams/by-http/records HTTP/1.1\r\nhost: {address}\r\n"
            writer.write(f"{head}content-length: {len(payload)}\r\n\r\n".encode() + payload)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            body = await reader.readexactly(int(answer.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
            assert answer.startswith(b"http/1.1 200 "), answer + body

    count, seen = await besieged(append, "slow", address)
    writer.close()
    async with cluster.connect() as client:
        assert await numbers(client, "by-http") == list(range(count))
    assert seen["held"] > 256


async def test_more_idle_connections_than_a_bookie_has_descriptors(cluster: LocalCluster) -> None:
    """Somebody who wrote before goes on, and the bookie opens file after file meanwhile."""
    bookie = service(cluster, "bookie-1")
    resource.prlimit(bookie["pid"], resource.RLIMIT_NOFILE, (DESCRIPTORS_MAX, DESCRIPTORS_MAX))
    async with direct_writer(cluster, "idle") as writer:
        count, seen = await besieged(lambda payload: writer.append(payload.rjust(1000)), "idle", bookie["address"])
    async with cluster.connect() as client:
        assert await numbers(client, "idle") == list(range(count))
    assert seen["held"] > 0
    assert seen["closed"] > 0
    assert not [each for each in cluster.events() if each["event"] == "restarted"]
