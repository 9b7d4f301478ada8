"""The class path on which `quire bench ledger --peer apache` finds all of Apache: printed for `make bench-peer`.

The jars that `make interop` fetched have a ZooKeeper without what its server needs. The pyspark package has that.
"""

import importlib.util
from pathlib import Path

_CLASS_PATH = Path(__file__).parent / "java" / "target" / "classpath.txt"


def bench_classpath() -> str:
    """Raises if something is missing: never a reason to skip."""
    if not _CLASS_PATH.exists():
        raise RuntimeError("the Java half of the interop tests is not built: `make interop` builds it and runs them")
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise RuntimeError("ZooKeeper's server takes two jars from the pyspark package, which is not installed")
    jars = Path(spark.origin).parent / "jars"
    found = [next(jars.glob(f"{name}-*.jar")) for name in ("metrics-core", "snappy-java")]
    return ":".join([_CLASS_PATH.read_text().strip(), *map(str, found)])


if __name__ == "__main__":
    print(bench_classpath())
