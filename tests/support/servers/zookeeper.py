"""A real ZooKeeper server on loopback, for tests: the one that ships inside the pyspark package.

A server keeps its port and its data across `stop`, `kill` and a new `start`, as a restarted machine would. The process
never outlives the tests, not even when those are killed: on Linux the kernel ends it together with the thread that
started it.
"""

import atexit
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port

TICK_MS: Final = 200  # The shortest session timeout that the server grants is two ticks.
_SESSION_MS_MAX: Final = 60_000


class ZooKeeperServer:
    """One standalone server with its data in `folder`. Start it from the main thread."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None
        self.log = folder / "zookeeper.log"
        atexit.register(self.kill)

    @property
    def port(self) -> int:
        assert self._port is not None, "the server was never started"
        return self._port

    @property
    def running(self) -> bool:
        return self._process is not None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, within_s: float = 60.0) -> None:
        """Return once the server answers. A first start picks a free port, every other one comes back to it."""
        assert self._process is None, "the server runs already"
        deadline_s = time.monotonic() + within_s
        while True:
            port = self._port or free_port()
            log_start = self.log.stat().st_size if self.log.exists() else 0
            if self._launch(port, deadline_s):
                self._port = port
                return
            log = self.log.read_text(errors="replace")[log_start:]
            if "Address already in use" not in log or time.monotonic() > deadline_s:
                raise RuntimeError(f"ZooKeeper did not start on port {port} within {within_s:g} s:\n{log[-8000:]}")

    def stop(self) -> None:
        """End the server in good order. A server that does not run is no error."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Keep the server from doing anything; its connections stay open and silent."""
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)  # The signal alone leaves its threads some time to answer.

    def thaw(self) -> None:
        """Let a frozen server go on. One that is not frozen does so anyway."""
        assert self._process is not None, "the server does not run"
        self._process.send_signal(signal.SIGCONT)

    def command(self, word: str) -> str:
        """The answer to a four-letter word such as `ruok`, `cons` or `wchp`. Raises `OSError` if nobody answers."""
        return _ask(self.port, word, within_s=5)

    def _launch(self, port: int, deadline_s: float) -> bool:
        command = _server_command(self._write_config(port))
        if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
            command = dying_with_us(command)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        while time.monotonic() < deadline_s and self._process.poll() is None:
            try:
                # `ruok` is answered early, while the data is still being read; `srvr` only once requests are served.
                # Whoever connects at a bad moment of the start is never answered: ask again instead of waiting.
                if _ask(port, "ruok", within_s=0.3) == "imok" and "Mode: " in _ask(port, "srvr", within_s=0.3):
                    return True
            except OSError:
                pass
            time.sleep(0.02)
        self.kill()
        return False

    def _write_config(self, port: int) -> Path:
        lines = [
            f"tickTime={TICK_MS}",
            f"maxSessionTimeout={_SESSION_MS_MAX}",
            f"dataDir={self._folder / 'data'}",
            "clientPortAddress=127.0.0.1",
            f"clientPort={port}",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=*",
        ]
        config = self._folder / "zoo.cfg"
        config.write_text("\n".join(lines) + "\n")
        return config

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # A frozen process would never see the other signal.
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def _server_command(config: Path) -> list[str]:
    java = shutil.which("java")
    if java is None:
        raise RuntimeError("tests against ZooKeeper need a Java runtime (17 or later): there is no `java` on the PATH")
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise RuntimeError("tests against ZooKeeper take its server from the pyspark package, which is not installed")
    return [
        java,
        "-Xmx128m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.apache.logging.log4j.level=INFO",
        "-Dzookeeper.jmx.log4j.disable=true",
        # Tests kill the process, never the machine: what it wrote is there without a flush. With one, whoever keeps the
        # disk busy decides how long every transaction takes, and sessions and deadlines of a few seconds go by.
        "-Dzookeeper.forceSync=no",
        "-cp",
        str(Path(spark.origin).parent / "jars" / "*"),
        "org.apache.zookeeper.server.quorum.QuorumPeerMain",
        str(config),
    ]


def _ask(port: int, word: str, *, within_s: float) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=within_s) as connection:
        connection.sendall(word.encode())
        answer = b""
        while data := connection.recv(65536):
            answer += data
        return answer.decode()
