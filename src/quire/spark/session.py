"""A SparkSession with settings that suit Quire. Any other session does as well; this one starts sooner and runs faster.

    from quire.spark.session import session

    spark = session()                                    # on this machine, with all its cores
    spark = session("spark://master:7077", **{"spark.executor.memory": "4g"})
    spark = session("sc://host:15002")                   # by Spark Connect, without a JVM on this machine

What it sets, and why:
  Python's workers    talk to the JVM over Unix sockets, and start from `quire.spark.worker_daemon`: a task that has
                      little to do costs half.
  filters             are handed to sources that ask for them, as `quire sql` does: `WHERE txid > …` skips segments.
  on this machine     everything listens on loopback only, and checkpoints are written by plain renames.

A server of Spark Connect was started with settings of its own: only those for SQL are set there, for the session.
"""

import atexit
import importlib.util
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from quire.errors import MissingExtra, NotRunning

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CHECKPOINT_FILES: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_SCRIPT: Final = """#!/bin/sh
PYTHONPATH=$(printf %s "$PYTHONPATH" | tr : '\\n' | grep -v '\\.zip$' | paste -sd: -)
export PYTHONPATH
exec {python} "$@"
"""

_EVERYWHERE: Final = {
    "spark.python.daemon.module": "quire.spark.worker_daemon",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
}

_LOCALLY: Final = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.streaming.checkpointFileManagerClass": _CHECKPOINT_FILES,
    "spark.ui.enabled": "false",
}


def session(master: str = "local[*]", app_name: str = "quire", **conf: object) -> "SparkSession":
    """The SparkSession of this process, started if there is none. `conf` has the last word over all settings.

    Raises `MissingExtra` without PySpark and what it needs, and `NotRunning` without Java.
    """
    check_installed(master)
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    if is_remote(master):
        builder = builder.remote(master)
    else:
        python = quick_python()
        os.environ.setdefault("PYSPARK_DRIVER_PYTHON", python)  # What plans queries, on this machine.
        os.environ.setdefault("PYSPARK_PYTHON", python if master.startswith("local") else sys.executable)
        builder = builder.master(master).appName(app_name)
    for name, value in settings_for(master, conf).items():
        builder = builder.config(name, value)
    started: SparkSession = builder.getOrCreate()
    return started


@cache
def quick_python() -> str:
    """A Python for Spark's processes on this machine, which start in a third of the time: this one, by way of a script.

    Spark puts zip files of itself in front of everything that they import. Those hold no bytecode, so that each process
    would compile PySpark anew.
    """
    folder = tempfile.mkdtemp(prefix="quire-python-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    script = os.path.join(folder, "python")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_SCRIPT.format(python=shlex.quote(sys.executable)))
    os.chmod(script, 0o700)
    return script


def is_remote(master: str) -> bool:
    """Whether it is a server of Spark Connect."""
    return master.startswith("sc://")


def settings_for(master: str, conf: Mapping[str, object]) -> dict[str, str]:
    """What a session on `master` is started with."""
    locally = _LOCALLY if master.startswith("local") else {}
    settings = {**_EVERYWHERE, **locally, **{name: _text(value) for name, value in conf.items()}}
    if is_remote(master):
        return {name: value for name, value in settings.items() if name.startswith("spark.sql.")}
    return settings


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_installed(master: str = "local") -> None:
    """Raises `MissingExtra` or `NotRunning`, each saying what to do."""
    for module in ("pyspark", "pyarrow", "pandas"):
        if importlib.util.find_spec(module) is None:
            raise MissingExtra(
                f"jobs on Spark need the module {module!r}, which is not installed",
                hint="Run: pip install 'quirelog[spark]'",
                module=module,
            )
    if is_remote(master):
        for module in ("grpc", "grpc_status", "google.rpc", "zstandard"):
            if not _is_there(module):
                raise MissingExtra(
                    f"Spark Connect needs the module {module!r}, which is not installed",
                    hint="Run: pip install 'pyspark[connect]'",
                    module=module,
                )
        return
    java = os.path.join(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else "java"
    if shutil.which(java) is None:
        raise NotRunning(
            f"Spark needs Java, and there is no {java!r}",
            hint="Install a Java runtime, 17 or later, and have it on the PATH, or set JAVA_HOME.",
        )


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # The package that it is in is not there.
        return False
