"""Our bookie as a process of its own, with its metadata in a SQLite file beside its data: killed and started again."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from quire.errors import QuireError
from quire.metadata import Cluster, init_cluster, open_store, parse_uri
from quire.rpc import BookieChannel, ChannelSettings
from quire.runtime import Runtime
from tests.support.waiting import eventually

BOOKIE = "b1"


async def new_cluster(runtime: Runtime, folder: Path) -> str:
    """Set up metadata for one test and return its URI."""
    uri = parse_uri(f"sqlite:{folder}/metadata.db")
    async with open_store(uri, runtime=runtime) as store:
        cluster: Cluster = await init_cluster(store, uri, runtime)
        return cluster.uri.text


class BookieProcess:
    """One bookie. It keeps its folder and its port for life; `stderr` tells what it said."""

    def __init__(self, runtime: Runtime, folder: Path, uri: str, *, port: int, arguments: tuple[str, ...] = ()) -> None:
        self._runtime, self._folder, self._uri, self.port = runtime, folder, uri, port
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        self.stderr = folder / "bookie.log"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Return when it answers."""
        await self.launch()
        await eventually(self._answers, within_s=30, what=f"the bookie answers: {self.stderr.read_text()[-800:]}")

    async def launch(self) -> None:
        with self.stderr.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "quire", "bookie", "run", "--metadata", self._uri, "--id", BOOKIE),
                *("--data", str(self._folder / "bookie"), "--listen", f"127.0.0.1:{self.port}", *self._arguments),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, f"the bookie ended: {self.stderr.read_text()[-2000:]}"
        try:
            async with await self.connect() as channel:
                await channel.bookie_info()
        except QuireError:
            return False
        return True

    async def connect(self, settings: ChannelSettings | None = None) -> BookieChannel:
        return await BookieChannel.connect(
            self._runtime, "127.0.0.1", self.port, settings or ChannelSettings(request_timeout_s=20.0)
        )

    async def kill(self) -> None:
        """End it as a crash would."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def stop(self) -> int:
        """End it as an operator would, and return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            os.kill(self._process.pid, signal.SIGTERM)
        async with asyncio.timeout(30):
            return await self._process.wait()

    async def wait(self) -> int:
        assert self._process is not None
        async with asyncio.timeout(30):
            return await self._process.wait()
