"""A driver that writes batches into a stream for ever, to be killed. `main` has its arguments, the last are for Spark.

Each record says which batch it is of, how many records that has, and which one it is: `batch size number`. What a batch
consists of depends on its number only, whoever makes it. In mode `auto` some of them are small enough to become
entries, and others are not. When a query fails it is started again from its checkpoint; so does the next process, after
this one died.
"""

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from quire.codec.stream.limits import RECORD_HEADER_BYTES
from tests.support.spark.session import QUICK_START, SETTINGS

ROWS = 60
PARTITIONS = 3
SMALL_BYTES = 40 * (RECORD_HEADER_BYTES + len("12 40 7"))


def size_of(batch: int) -> int:
    """How many records batch number `batch` has: they differ, so that parts of two do not make up one."""
    return 25 + batch * 17 % 36


def main(uri: str, stream: str, master: str, folder: str, mode: str, *conf: str) -> None:
    builder = SparkSession.builder.master(master).appName("to-be-killed")
    for name, value in {**SETTINGS, **dict(each.split("=", 1) for each in conf)}.items():
        builder = builder.config(name, value)
    builder = builder.config("spark.driver.extraJavaOptions", f"{QUICK_START} -Dderby.system.home={folder}")
    spark = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=ROWS, numPartitions=PARTITIONS).load()
    sized = rows.selectExpr(f"value DIV {ROWS} AS batch", f"value % {ROWS} AS number")
    sized = sized.selectExpr("batch", "25 + batch * 17 % 36 AS size", "number").where("number < size")
    records = sized.selectExpr("concat_ws(' ', batch, size, number) AS payload")
    while True:
        query = (
            records.writeStream.format("quire")
            .options(uri=uri, stream=stream, mode=mode, inlineBytes=SMALL_BYTES)
            .option("checkpointLocation", f"{folder}/checkpoint")
            .trigger(processingTime="100 milliseconds")
            .start()
        )
        try:
            query.awaitTermination()
        except Exception as error:
            with (Path(folder) / "errors.log").open("a") as log:
                log.write(f"{error}\n---\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
