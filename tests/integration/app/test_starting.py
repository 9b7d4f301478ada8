"""Services that are started before their ZooKeeper is there."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from quire.metadata import init_cluster, open_store, parse_uri
from quire.runtime import real_runtime
from quire.stream.binding import binding_for, write_binding
from quire.stream.uri import parse_stream_uri
from tests.support.servers.link import Link
from tests.support.servers.zookeeper import ZooKeeperServer
from tests.support.waiting import eventually

ROOT = "/started-early"
KINDS = ["bookie", "autorecovery", pytest.param("write-proxy", marks=pytest.mark.extended)]


def command(kind: str, port: int, folder: Path) -> list[str]:
    metadata, uri = f"zk://127.0.0.1:{port}{ROOT}/ledgers", f"distributedlog://127.0.0.1:{port}{ROOT}/ns"
    return {
        "bookie": ["bookie", "run", "--metadata", metadata, "--data", str(folder / "data"), "--listen", "127.0.0.1:0"],
        "autorecovery": ["autorecovery", "run", "--metadata", metadata],
        "write-proxy": [
            "write-proxy",
            "run",
            "--uri",
            uri,
            "--listen",
            "127.0.0.1:0",
            "--set",
            "write.graceful_period_s=0",
        ],
    }[kind]


@contextmanager
def running(folder: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "quire", *words, "--timeout", "0.5"], stderr=log, cwd=folder
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


async def has_told(process: "subprocess.Popen[bytes]", folder: Path, event: str) -> None:
    async def told() -> bool:
        log = (folder / "log").read_text()
        assert process.poll() is None, log
        return f'"{event}"' in log

    await eventually(told, what=event, within_s=60)


async def set_up(port: int) -> None:
    parsed = parse_uri(f"zk://127.0.0.1:{port}{ROOT}/ledgers")
    namespace = parse_stream_uri(f"distributedlog://127.0.0.1:{port}{ROOT}/ns")
    async with open_store(parsed) as store:
        if await store.exists(ROOT) is None:
            await init_cluster(store, parsed, real_runtime())
            binding = binding_for(namespace, f"{ROOT}/ledgers")
            await write_binding(store, namespace.path, binding, create=True)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_service_waits_for_its_metadata_store(kind: str, zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    await set_up(zookeeper.port)
    async with Link(zookeeper.port) as link:
        link.cut()
        with running(tmp_path, *command(kind, link.port, tmp_path)) as process:
            await has_told(process, tmp_path, "metadata.awaited")
            link.mend()
            await has_told(process, tmp_path, f"{kind.removeprefix('write-')}.serving")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0


async def test_a_service_that_waits_can_be_stopped(zookeeper: ZooKeeperServer, tmp_path: Path) -> None:
    async with Link(zookeeper.port) as link:
        link.cut()
        with running(tmp_path, *command("bookie", link.port, tmp_path)) as process:
            await has_told(process, tmp_path, "metadata.awaited")
            process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(process.wait, 60) == 0
