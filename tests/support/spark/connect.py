"""A real Spark Connect server on loopback, as a process of its own, from the pip package.

Its clients are processes of their own, too: PySpark decides once a process whether it talks to a JVM or to a server.
"""

import atexit
import importlib.util
import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port
from tests.support.spark.session import QUICK_START, worker_python

_DEADLINE_S: Final = 120.0
_LOOK_S: Final = 0.05
_CONF: Final = {
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class ConnectServer:
    """Start it from the main thread: on Linux the kernel ends it with the thread that started it."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None
        atexit.register(self._kill)

    @property
    def url(self) -> str:
        """What clients give to `SparkSession.builder.remote`."""
        return f"sc://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None, "the server comes from the pyspark package"
        assert spec.origin is not None
        java = f"spark.driver.extraJavaOptions={QUICK_START} -Dderby.system.home={self._folder}"
        settings = [f"{name}={value}" for name, value in _CONF.items()]
        settings += [java, f"spark.connect.grpc.binding.port={self._port}"]
        command = [
            *(str(Path(spec.origin).parent / "bin" / "spark-submit"), "--master", "local[2]"),
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for setting in settings for word in ("--conf", setting)),
            "spark-internal",
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                dying_with_us(command),
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait()
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(_DEADLINE_S)
            self._process = None

    @property
    def _environment(self) -> dict[str, str]:
        python = worker_python(self._folder)
        others = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))}
        return {**others, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}

    @property
    def _log(self) -> Path:
        return self._folder / "connect.log"

    def _wait(self) -> None:
        assert self._process is not None
        deadline_s = time.monotonic() + _DEADLINE_S
        while not self._listens():
            is_over = self._process.poll() is not None or time.monotonic() > deadline_s
            assert not is_over, f"the server did not start:\n{self._log.read_text()[-6000:]}"
            threading.Event().wait(_LOOK_S)

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._port)) == 0

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
            self._process = None
