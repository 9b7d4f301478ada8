"""Apache BookKeeper as the other side of a benchmark: ZooKeeper, bookies and a client in Java.

Each is a process of its own. The client is a Java file of this folder, which Java compiles as it starts: it takes a
command a line, and answers with numbers. All settings are Apache's own except those that make both sides do the same
work, and those that let three bookies live on one machine: see `_bookie_settings`.
"""

import asyncio
import shutil
import socket
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from benchmarks.apache.class_path import class_path
from benchmarks.processes import process_cpu_s
from quire.errors import BookieFailed, InvalidArgument

_READY_WITHIN_S: Final = 60.0
_ANSWER_WITHIN_S: Final = 600.0
_SESSION_MS: Final = 60_000  # Nobody is taken for dead because the machine is busy.
_ANSWER_BYTES_MAX: Final = 64 << 20
# What Apache's own start script gives to a bookie. The client gets the same.
_JVM: Final = (
    *("-Xms1g", "-Xmx1g", "-XX:MaxDirectMemorySize=2g"),
    *("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=10", "-XX:+ParallelRefProcEnabled", "-XX:+DisableExplicitGC"),
    *("-Dio.netty.leakDetectionLevel=disabled", "-Dio.netty.tryReflectionSetAccessible=true"),
    "-Djava.net.preferIPv4Stack=true",
    *("--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED"),
    *("--add-opens=java.base/java.io=ALL-UNNAMED", "--add-opens=java.base/java.util.zip=ALL-UNNAMED"),
)


class ApacheCluster:
    """What `open_apache_cluster` opens."""

    def __init__(self, client: "_Client", bookies: Sequence[Process]) -> None:
        self._client, self._bookies = client, bookies

    def cpu_s(self) -> float:
        """What its bookies have used."""
        return sum(process_cpu_s(bookie.pid) for bookie in self._bookies)

    async def ask(self, command: str, *numbers: int) -> list[int]:
        """Have the client do something. Raises `BookieFailed`."""
        return await self._client.ask(command, *numbers)


@asynccontextmanager
async def open_apache_cluster(
    folder: str,
    *,
    client: str,
    arguments: Sequence[str] = (),
    bookies: int,
    settings: Mapping[str, str],
) -> AsyncIterator[ApacheCluster]:
    """ZooKeeper, bookies and a client, once all are ready. Raises `InvalidArgument` and `BookieFailed`."""
    java = shutil.which("java")
    if java is None:
        raise InvalidArgument("there is no `java` on the PATH", hint="Install a JDK (17 or later).")
    place = Path(folder, "apache")
    place.mkdir()
    async with AsyncExitStack() as stack:
        source, jars = Path(__file__).with_name(f"{client}.java"), class_path()

        async def start(name: str, *words: str) -> Process:
            command = (java, "-cp", jars, *words)
            return await stack.enter_async_context(_running(place / f"{name}.log", command))

        port = _free_port()
        options = ("-Xmx256m", "-Dzookeeper.forceSync=no")  # Nothing waits for it, nor may its flushes disturb.
        zookeeper = await start("zookeeper", *options, _ZOOKEEPER_MAIN, _zookeeper_file(place, port))
        await _listening(port, zookeeper, place / "zookeeper.log")
        uri = f"zk+hierarchical://127.0.0.1:{port}/ledgers"
        log = place / "client.log"
        running = _Client(await start("client", *_JVM, str(source), uri, *arguments), log)
        await running.line(within_s=_READY_WITHIN_S)
        processes = []
        for number in range(bookies):
            name = f"bookie{number}"
            conf = _bookie_file(place, name, {**_bookie_settings(place / name, uri), **settings})
            processes.append(await start(name, *_JVM, _BOOKIE_MAIN, "-c", conf))
        try:
            await running.ask("await", bookies, within_s=_READY_WITHIN_S)
        except BookieFailed as error:
            problem = f"Apache's bookies did not start: {_problem_in(place / 'bookie0.log')}"
            raise BookieFailed(problem, hint=_START_HINT) from error
        yield ApacheCluster(running, processes)


class _Client:
    """The Java client: a line of words there, a line of numbers back."""

    def __init__(self, process: Process, log: Path) -> None:
        self._process, self._log = process, log

    async def ask(self, command: str, *numbers: int, within_s: float = _ANSWER_WITHIN_S) -> list[int]:
        if self._process.stdin is not None:
            self._process.stdin.write(f"{' '.join([command, *map(str, numbers)])}\n".encode())
        answer = await self.line(within_s=within_s)
        if answer.startswith("error "):
            problem = f"Apache's client could not {command}: {answer.removeprefix('error ')}"
            raise BookieFailed(problem, hint="A smaller --window may help, or a machine that is less busy.")
        return [int(word) for word in answer.split() if word != "ok"]

    async def line(self, *, within_s: float) -> str:
        try:
            async with asyncio.timeout(within_s):
                answer = await self._process.stdout.readline() if self._process.stdout is not None else b""
        except TimeoutError:
            raise BookieFailed(f"Apache's client did not answer within {within_s:g} s") from None
        if not answer.endswith(b"\n"):
            raise BookieFailed(f"Apache's client ended: {_problem_in(self._log)}")
        return answer.decode().strip()


# --- Processes


_START_HINT: Final = "`make bench-peer` fetches the jars that it needs."
_ZOOKEEPER_MAIN: Final = "org.apache.zookeeper.server.ZooKeeperServerMain"
_BOOKIE_MAIN: Final = "org.apache.bookkeeper.server.Main"


@asynccontextmanager
async def _running(log: Path, command: Sequence[str]) -> AsyncIterator[Process]:
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE if log.stem == "client" else errors,
            stderr=errors,
            limit=_ANSWER_BYTES_MAX,
        )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()  # What they keep is thrown away anyway.
        await process.wait()


async def _listening(port: int, process: Process, log: Path) -> None:
    deadline_s = time.monotonic() + _READY_WITHIN_S
    while process.returncode is None and time.monotonic() < deadline_s:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
            continue
        writer.close()
        return
    raise BookieFailed(f"Apache's ZooKeeper did not start: {_problem_in(log)}", hint=_START_HINT)


def _zookeeper_file(folder: Path, port: int) -> str:
    lines = [
        f"dataDir={folder / 'zookeeper'}",
        "clientPortAddress=127.0.0.1",
        f"clientPort={port}",
        "maxClientCnxns=0",
        f"maxSessionTimeout={_SESSION_MS}",
        "admin.enableServer=false",
    ]
    return _write(folder / "zoo.cfg", lines)


def _bookie_file(folder: Path, name: str, settings: Mapping[str, object]) -> str:
    return _write(folder / f"{name}.conf", [f"{key}={value}" for key, value in settings.items()])


def _bookie_settings(folder: Path, uri: str) -> dict[str, object]:
    return {
        "metadataServiceUri": uri,
        "zkTimeout": _SESSION_MS,
        "bookieId": folder.name,
        "bookiePort": _free_port(),
        "advertisedAddress": "127.0.0.1",
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        # What Quire's bookies always do: an entry is acknowledged when it is on disk. It is Apache's default, too.
        "journalSyncData": "true",
        "journalWriteData": "true",
        # A bookie that is behind, which the ack quorum does not wait for, would refuse adds beyond 10,000 in its queue.
        "maxPendingAddRequestsPerThread": 0,
        # The disk may be nearly full; that is not what is measured.
        "diskUsageThreshold": 0.9999,
        "diskUsageWarnThreshold": 0.9998,
        "diskUsageLwmThreshold": 0.9997,
        "httpServerEnabled": "false",
    }


def _write(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def _problem_in(log: Path) -> str:
    """The line that names what went wrong, or else the last one."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    named = [line for line in lines if "Exception" in line or "Error" in line or "error:" in line]
    return next(iter(named or lines[-1:]), "it printed nothing")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
