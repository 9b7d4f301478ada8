"""Quire's streams in Spark: `spark.read.format("quire")`, and the jobs that keep a log in order.

    quire.spark.register(spark)                      # only where Spark does not find the source by itself
    spark.read.format("quire").option("uri", "file:./data").option("stream", "orders").load()

Importing this loads neither PySpark nor Arrow: Spark's processes import it before they know what they are for.
"""

from typing import Any

__all__ = ["register"]


def register(spark: Any) -> None:
    """Make `format("quire")` known to a session. Needed where the package came by `spark.submit.pyFiles`."""
    from quire.spark.source import QuireDataSource

    spark.dataSource.register(QuireDataSource)
