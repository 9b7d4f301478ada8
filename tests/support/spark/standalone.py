"""A real Spark cluster on loopback: one master and two workers, as processes of their own, from the pip package.

Its driver is a process of its own too, as a process can hold one SparkSession only: run commands or scripts with
`cluster.environment` and `--master cluster.master`. Nothing of it outlives the tests, not even when those are killed:
on Linux the kernel ends master and workers together with the thread that started them, and executors end with their
worker.
"""

import atexit
import importlib.util
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Final, Self

from tests.support.processes import children_of
from tests.support.processes import command as command_of
from tests.support.servers.becoming import dying_with_us
from tests.support.servers.ports import free_port
from tests.support.spark.session import worker_python

_DEADLINE_S: Final = 90.0
_LOOK_S: Final = 0.05
_LOG_SHOWN_CHARACTERS: Final = 6_000


class StandaloneCluster:
    """One master and its workers, each with one core. Start it from the main thread."""

    def __init__(self, folder: Path, *, workers: int = 2, memory_mb: int = 1024) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._workers, self._memory_mb = folder, workers, memory_mb
        self._processes: list[subprocess.Popen[bytes]] = []
        self._port = 0
        atexit.register(self.kill)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    @property
    def environment(self) -> dict[str, str]:
        """For drivers: the same Python on every node, and loopback only."""
        return {
            **os.environ,
            "PYSPARK_DRIVER_PYTHON": worker_python(self._folder),
            "PYSPARK_PYTHON": worker_python(self._folder),
            "PYTHONPATH": os.pathsep.join([os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
            "SPARK_LOCAL_DIRS": str(self._folder / "scratch"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }

    @property
    def settings(self) -> dict[str, str]:
        """What a session needs to fit into these workers."""
        return {
            "spark.executor.memory": f"{self._memory_mb * 3 // 4}m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "spark.cores.max": str(self._workers),
        }

    def start(self) -> None:
        """Return when every worker is registered."""
        assert not self._processes, "the cluster runs already"
        self._port = free_port()
        self._launch("master", "master.Master", "--host", "127.0.0.1", "--port", str(self._port), "--webui-port", "0")
        self._wait("master", "I have been elected leader")
        for number in range(self._workers):
            shape = ["--cores", "1", "--memory", f"{self._memory_mb}m"]
            place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}")]
            self._launch(f"worker-{number}", "worker.Worker", *shape, *place, self.master)
        for number in range(self._workers):
            self._wait(f"worker-{number}", "Successfully registered with master")

    def stop(self) -> None:
        """In good order, so that workers end their executors."""
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        self._join()

    def kill(self) -> None:
        """As a crash would."""
        for process in self._processes:
            process.kill()
        self._join()

    def _join(self) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)

    def has_run(self, name: str) -> bool:
        """Whether an application of this name has come to the master."""
        return f"Registering app {name}" in self._log("master").read_text(errors="replace")

    def executor_pids(self) -> list[int]:
        """Those that run now, for tests that end them: children of our workers."""
        return [pid for pid in children_of(*(process.pid for process in self._processes)) if is_executor(pid)]

    def _launch(self, name: str, main: str, *arguments: str) -> None:
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None, "the cluster comes from the pyspark package"
        assert spec.origin is not None
        command = [str(Path(spec.origin).parent / "bin" / "spark-class"), f"org.apache.spark.deploy.{main}", *arguments]
        variables = {
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }
        with self._log(name).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    dying_with_us(command),
                    cwd=self._folder,
                    env={**self.environment, **variables},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )

    def _wait(self, name: str, text: str) -> None:
        deadline_s = time.monotonic() + _DEADLINE_S
        while text not in self._log(name).read_text(errors="replace"):
            over = any(process.poll() is not None for process in self._processes) or time.monotonic() > deadline_s
            assert not over, f"{name} did not start:\n{self._log(name).read_text()[-_LOG_SHOWN_CHARACTERS:]}"
            threading.Event().wait(_LOOK_S)

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def is_executor(pid: int) -> bool:
    return any("CoarseGrainedExecutorBackend" in word for word in command_of(pid))
