"""What a client of Spark Connect does with a log: `python -m … REMOTE URI FOLDER`. Prints what it saw as JSON."""

import json
import sys

from pyspark.sql import SparkSession

from quire.spark.archive import archive
from quire.spark.replay import replay_stream
from quire.spark.sql import query
from quire.stream.cold_moves import DropPolicy


def main(remote: str, uri: str, folder: str) -> None:
    spark = SparkSession.builder.remote(remote).getOrCreate()
    seen: dict[str, object] = {"client": type(spark).__module__}

    frame = spark.range(0, 1000, 1, 2).selectExpr("CAST(id AS STRING) AS payload", "id + 1 AS txid")
    for _ in range(2):  # As a job that is run again: the second time it changes nothing.
        writing = frame.write.format("quire").mode("append").option("uri", uri).option("stream", "orders")
        writing.option("sinkId", "load").option("txnId", "first").option("mode", "staged").save()
    orders = spark.read.format("quire").option("uri", uri).option("stream", "orders").load()
    seen["columns"] = orders.columns
    seen["read"] = [bytes(row[0]).decode() for row in orders.select("payload").collect()]

    live = spark.readStream.format("quire").option("uri", uri).option("stream", "orders").load()
    copied = live.selectExpr("concat(CAST(payload AS STRING), '!') AS payload", "txid")
    for _ in range(2):  # From its checkpoint: the second time there is nothing new.
        copying = copied.writeStream.format("quire").option("uri", uri).option("stream", "copy")
        started = copying.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
        assert started.awaitTermination(120)

    report = archive(spark, uri, f"file:{folder}/cold", ["orders"], drop=DropPolicy())
    seen["archived"] = sum(each.records for each in report.archived)
    seen["dropped"] = len(report.dropped)
    seen["sql"] = query(spark, uri, "SELECT count(*) AS records FROM orders").collect()[0][0]
    seen["replayed"] = replay_stream(spark, uri, "orders", "again", checkpoint=f"{folder}/replayed").records
    try:
        spark.read.format("quire").option("uri", uri).option("stream", "nothing").load().collect()
    except Exception as error:
        seen["error"] = str(error)
    print(json.dumps(seen))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
