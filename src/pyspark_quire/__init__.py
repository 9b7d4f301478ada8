"""Where Spark looks for data sources: `format("quire")` needs no registration where this package is installed."""

from quire.spark.source import QuireDataSource as DefaultSource

__all__ = ["DefaultSource"]
