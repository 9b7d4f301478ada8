"""A driver of Spark that writes numbers into a stream for ever, to be killed: `python -m …sink_driver URI STREAM …`.

Batch n has the numbers from n·ROWS on, whoever asks for it; if n is odd, with zeros before them. In mode `auto` that is
the difference between batches that are entries and batches that are segments. When a query fails it is started again
from its checkpoint; so does the next process, after this one died.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from quire.codec.stream.limits import RECORD_HEADER_BYTES
from quire.spark import register
from tests.support.spark.session import QUICK_START, SETTINGS

ROWS = 60
SMALL_BYTES = ROWS * (RECORD_HEADER_BYTES + 20)
PARTITIONS = 3


def main(uri: str, stream: str, folder: str, mode: str) -> None:
    builder = SparkSession.builder.master(os.environ.get("QUIRE_SPARK_MASTER") or "local[2,4]").appName("to-be-killed")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", f"{QUICK_START} -Dderby.system.home={folder}")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    frame = (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", ROWS)
        .option("numPartitions", PARTITIONS)
        .load()
        .selectExpr(f"lpad(value, IF(value DIV {ROWS} % 2 = 0, 10, 40), '0') AS value")
    )
    while True:
        query = (
            frame.writeStream.format("quire")
            .options(uri=uri, stream=stream, mode=mode, inlineBytes=SMALL_BYTES)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(processingTime="200 milliseconds")
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            with (Path(folder) / "errors.log").open("a") as log:
                log.write(f"{error}\n---\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
