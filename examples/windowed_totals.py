"""Windowed totals: payments of a live stream are summed up by shop and minute on Spark, into another stream.

Totals come while payments go on: a minute is closed by a payment a minute later, as txids say. Each total is there
once, whatever ends the program: run it again, and it goes on. Needs `quirelog[spark]`, and bookies: see `quire up`.
"""

import os
import time

import typer
from pyspark.sql.functions import expr, window

import quire
from quire.spark.session import session


def total(uri: str, master: str = "local[*]") -> None:
    spark = session(master, "windowed totals", **{"spark.sql.shuffle.partitions": 2})
    log = {"uri": uri, "checkpointLocation": os.path.abspath("windowed-totals")}
    with quire.sync.connect(uri) as client, client.open_writer("till") as till, client.open_writer("totals"):
        first = max(till.last_txid + 1000, time.time_ns() // 60_000_000_000 * 60_000)  # Now there are both streams.
    paid = spark.readStream.format("quire").options(**log, stream="till").load().withWatermark("time", "1 minute")
    shop, cents = "split(STRING(payload), ',')[0] AS shop", "SUM(INT(split(STRING(payload), ',')[1])) AS cents"
    totals = paid.groupBy(window("time", "1 minute").alias("minute"), expr(shop)).agg(expr(cents))
    lines = totals.selectExpr("to_json(struct(minute.start AS minute, shop, cents)) AS payload")
    query = lines.writeStream.format("quire").options(**log, stream="totals").start()
    with quire.sync.connect(uri) as client, client.open_reader("totals", subscription="printed") as reader:
        for minute in range(5):  # A payment each second, in one of three shops. A minute takes a moment here.
            txids = range(first + minute * 60_000, first + minute * 60_000 + 60_000, 1000)
            with client.open_writer("till") as till:
                till.append_many([b"shop-%d,%d" % (each % 3, each) for each in range(60)], txids=txids)
            for _ in range(3 if minute >= 2 else 0):
                print(next(reader).payload.decode(), flush=True)
        reader.commit()
    query.stop()


if __name__ == "__main__":
    typer.run(total)
