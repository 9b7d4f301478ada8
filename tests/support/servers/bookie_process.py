"""A bookie as a process of its own on loopback, whoever wrote it: what the tests against both kinds have in common.

A bookie keeps its name, its port and its data across `stop`, `kill` and a new `start`. It never outlives the tests, not
even when those are killed: on Linux the kernel ends it together with the thread that started it.
"""

import atexit
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from kazoo.client import KazooClient
from kazoo.protocol.states import ZnodeStat

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port

# Short, because a bookie that was killed comes back only after its old session ended. Long enough for a busy machine.
SESSION_MS: Final = 3_000
_LOG_SHOWN_CHARACTERS: Final = 6_000


class BookieProcess(ABC):
    """One bookie with all that it keeps in `folder`, in the cluster at `uri`, which has its metadata in ZooKeeper."""

    def __init__(self, folder: Path, uri: str, name: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.uri, self.name = folder, uri, name
        self.port = free_port()
        self.log = folder / "bookie.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._registered_before: ZnodeStat | None = None
        atexit.register(self.kill)

    @abstractmethod
    def command(self) -> list[str]:
        """The command line that runs this bookie in the foreground."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def registration(self) -> str:
        """The node that says that this bookie lives."""
        return f"{urlsplit(self.uri).path}/available/{self.name}"

    # --- Life and death

    def start(self, *, within_s: float = 60.0) -> None:
        """Return once the bookie is registered and takes connections. Call it from the main thread: see `launch`."""
        self.launch()
        self.wait_ready(within_s=within_s)

    def launch(self) -> None:
        """Start the bookie and return at once. Linux ends it with the *thread* that starts it."""
        assert self._process is None, f"bookie {self.name} runs already"
        self._registered_before = self._look_up()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dying_with_us(self.command()),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_ready(self, *, within_s: float = 60.0) -> None:
        """Wait for a registration of this life of the bookie: the one of a life before may still be there."""
        deadline_s = time.monotonic() + within_s
        client = self._connect()
        try:
            while not self._is_ready(client):
                if not self.running:
                    raise RuntimeError(f"bookie {self.name} ended while it started:\n{self.log_end()}")
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"bookie {self.name} did not start within {within_s:g} s:\n{self.log_end()}")
                time.sleep(0.02)
        finally:
            client.stop()
            client.close()

    def stop(self) -> int:
        """End the bookie in good order and return its exit code. One that takes too long is killed, and an error."""
        assert self._process is not None, f"bookie {self.name} does not run"
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
            raise RuntimeError(f"bookie {self.name} did not end within 20 s:\n{self.log_end()}") from None

    def kill(self) -> None:
        """End the bookie as a crash would. One that does not run is no error."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(10)

    def log_end(self) -> str:
        """The end of what the bookie printed, for whoever has to find out what went wrong."""
        return self.log.read_text(errors="replace")[-_LOG_SHOWN_CHARACTERS:]

    # --- Registration

    def _connect(self) -> KazooClient:
        client = KazooClient(hosts=urlsplit(self.uri).netloc)
        client.start(timeout=20)
        return client

    def _look_up(self) -> ZnodeStat | None:
        client = self._connect()
        try:
            return client.exists(self.registration)
        finally:
            client.stop()
            client.close()

    def _is_ready(self, client: KazooClient) -> bool:
        now, before = client.exists(self.registration), self._registered_before
        if now is None or (before is not None and now.owner_session_id == before.owner_session_id):
            return False
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True
