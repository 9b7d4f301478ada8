"""The fixture `spark`: one SparkSession for a whole test process, made when the first test asks for it.

Tests that use it belong into one xdist group, so that only one worker starts a JVM:

    pytestmark = pytest.mark.xdist_group("spark")

The session runs `local[2,4]`: a failed task is tried again, as on a cluster. Nothing of it outlives the tests, neither
the JVM nor Python's workers: those end with it, and it ends with the pipe to this process.
"""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

# Fast to start rather than fast to run: tests are many small jobs.
QUICK_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"

SETTINGS: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    "spark.sql.streaming.numRecentProgressUpdates": "1000",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}

# Spark puts its own zip files in front of everything that workers import. Those hold no bytecode, so each worker would
# compile PySpark anew: this alone is five seconds.
_PYTHON: Final = """#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v '\\.zip$' | paste -sd: -)
export PYTHONPATH
exec {python} "$@"
"""


def worker_python(folder: Path) -> str:
    """A Python for Spark's workers: this one, without Spark's zip files on its path."""
    script = folder / "python"
    script.write_text(_PYTHON.format(python=sys.executable))
    script.chmod(0o755)
    return str(script)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The one SparkSession of this process. Leave it running, and its settings as they are."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", worker_python(folder))
        patch.setenv("PYSPARK_DRIVER_PYTHON", worker_python(folder))  # Which plans what data sources do.
        patch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        patch.setenv("SPARK_LOCAL_DIRS", str(folder))
        session = _start(folder)
        yield session
        _stop(session)


def _start(folder: Path) -> Any:
    from pyspark.sql import SparkSession  # Half a second, which only tests of Spark should pay.

    logging.getLogger("py4j").setLevel(logging.WARNING)
    builder = SparkSession.builder.master("local[2,4]").appName("quire-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", f"{QUICK_START} -Dderby.system.home={folder}")
    on_interrupt = signal.getsignal(signal.SIGINT)
    session = builder.config("spark.sql.warehouse.dir", str(folder / "warehouse")).getOrCreate()
    signal.signal(signal.SIGINT, on_interrupt)  # Spark puts its own in; other tests of this process want theirs.
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stop(session: Any) -> None:
    """Also the JVM, which `stop` leaves running for a next session."""
    gateway = session.sparkContext._gateway
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the garbage collector.
        session.stop()
        gateway.shutdown()
        process: subprocess.Popen[bytes] = gateway.proc
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
