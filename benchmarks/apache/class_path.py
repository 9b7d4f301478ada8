"""Where Apache's jars are: those that interop tests fetch. Its ZooKeeper needs two more, from the pyspark package."""

import importlib.util
from pathlib import Path
from typing import Final

from quire.errors import InvalidArgument

_FETCHED: Final = Path(__file__).parents[2] / "tests/interop/java/target/classpath.txt"


def class_path() -> str:
    """Raises `InvalidArgument` if something is missing."""
    spark = importlib.util.find_spec("pyspark")
    if not _FETCHED.exists() or spark is None or spark.origin is None:
        raise InvalidArgument("the jars of Apache BookKeeper are not there", hint="`make bench-peer` fetches them.")
    jars = Path(spark.origin).parent / "jars"
    found = [next(jars.glob(f"{name}-*.jar")) for name in ("metrics-core", "snappy-java")]
    return ":".join([_FETCHED.read_text().strip(), *map(str, found)])
