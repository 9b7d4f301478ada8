"""The process that Spark forks its Python workers from, with what they need imported once and for all.

Spark puts zip files of itself in front of everything that workers import, and those hold no bytecode: PySpark would be
compiled anew in each of these processes. Here they go off the path first, as PySpark is installed beside us. What is
imported before the fork is shared by all workers, and out of sight of their garbage collectors, which run after every
task.
"""

import gc
import importlib.util
import sys


def main() -> None:
    """What Spark runs: `python -m quire.spark.worker_daemon`, with the arguments of its own daemon."""
    kept = [path for path in sys.path if not path.endswith(".zip")]
    with_zips, sys.path[:] = list(sys.path), kept
    if importlib.util.find_spec("pyspark") is None:
        sys.path[:] = with_zips  # Not installed here: Spark's own copy has to do.
    from pyspark import daemon

    for module in ("pyspark.worker", "pyarrow", "quire.spark.client_cache"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    daemon.manager()


if __name__ == "__main__":
    main()
