"""Records through everything that Spark does with a log, in one driver: what `tests/e2e/test_spark_standalone.py` runs.

In by the sink, out by batch and by stream, to cold storage, away from the bookies, truncated, and back: at each station
every record has to be there once, in order, with the payload that it had. Prints what it saw as JSON.
"""

import argparse
import asyncio
import hashlib
import json
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import quire
from quire.spark.archive import archive, restore
from quire.spark.replay import replay_stream
from quire.spark.session import session
from quire.stream.cold_moves import DropPolicy
from quire.types import DLSN

PAYLOAD: Final = "concat('record-', lpad(cast(id AS STRING), 12, '0'), repeat('.', cast(id % 90 AS INT)))"


class RoundTrip:
    """A driver's work, station by station."""

    def __init__(self, spark: SparkSession, uri: str, records: int, folder: str) -> None:
        self._spark, self._uri, self._records, self._folder = spark, uri, records, folder
        self.seen: dict[str, Any] = {}

    def run(self) -> None:
        self._write("orders")
        self._check("written", "orders", 0)
        report = replay_stream(
            self._spark, self._uri, "orders", "copy", checkpoint=f"{self._folder}/checkpoint", batch_bytes="16m"
        )
        self.seen["streamed"] = report.records
        self._check("copied", "copy", 0)

        archived = archive(self._spark, self._uri, f"file:{self._folder}/cold", drop=DropPolicy())
        self.seen["archived"] = sum(each.records for each in archived.archived)
        self.seen["failed"] = [str(each.error) for each in archived.failed]
        self.seen["dropped"] = len(archived.dropped)
        self._check("cold", "orders", 0)
        self._check("cold_copy", "copy", 0)

        gone = self._records // 4
        self.seen["truncated_to"] = asyncio.run(self._truncate("orders", gone))
        self._check("truncated", "orders", gone)
        restored = restore(self._spark, self._uri, ["orders", "copy"])
        self.seen["restored_segments"] = sum(map(len, restored.values()))
        self._check("restored", "orders", gone)
        self._check("restored_copy", "copy", 0)
        self.seen["read_directly"] = asyncio.run(self._read_directly("orders", gone))

    def _write(self, stream: str) -> None:
        """In two batches, each of them from several tasks."""
        half = self._records // 2
        for name, (begin, end) in enumerate(((0, half), (half, self._records))):
            frame = self._spark.range(begin, end, 1, 3).selectExpr(f"{PAYLOAD} AS payload", "id + 1 AS txid")
            writing = frame.write.format("quire").mode("append").option("uri", self._uri).option("stream", stream)
            for _ in range(2):  # As a job that is run again: the second time it changes nothing.
                writing.option("sinkId", "load").option("txnId", f"part-{name}").save()

    def _check(self, station: str, stream: str, gone: int) -> None:
        """All records from `gone` on, as one table in the order in which Spark read them."""
        frame = self._spark.read.format("quire").option("uri", self._uri).option("stream", stream).load()
        table = frame.select("segment", "entry", "slot", "txid", "payload").toArrow()
        self.seen[station] = {
            "records": table.num_rows,
            "in_order": _in_order(table),
            "txids": bool(np.array_equal(table["txid"].to_numpy(), np.arange(gone + 1, self._records + 1))),
            "checksum": _checksum(table["payload"].to_pylist()),
        }

    async def _truncate(self, stream: str, gone: int) -> str:
        async with quire.connect(self._uri) as client:
            first: DLSN = await client.truncate_stream(stream, before=quire.txid(gone + 1))
            return str(first)

    async def _read_directly(self, stream: str, gone: int) -> dict[str, Any]:
        payloads: list[bytes] = []
        async with quire.connect(self._uri) as client, client.open_reader(stream) as reader:
            async for record in reader:
                payloads.append(record.payload)
                if len(payloads) == self._records - gone:
                    break
        return {"records": len(payloads), "checksum": _checksum(payloads)}


def expected(records: int, gone: int) -> str:
    """The checksum of what was written, from `gone` on."""
    return _checksum([b"record-%012d%s" % (each, b"." * (each % 90)) for each in range(gone, records)])


def _checksum(payloads: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(payloads)).hexdigest()


def _in_order(table: pa.Table) -> bool:
    """Whether each place is behind the one before it."""
    segment, entry, slot = (table[name].to_numpy() for name in ("segment", "entry", "slot"))
    steps = (np.diff(segment), np.diff(entry), np.diff(slot))
    later = (steps[0] > 0) | ((steps[0] == 0) & ((steps[1] > 0) | ((steps[1] == 0) & (steps[2] > 0))))
    return bool(later.all())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("uri")
    parser.add_argument("master")
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--conf", action="append", default=[])
    given = parser.parse_args()
    conf = dict(each.split("=", 1) for each in given.conf)
    spark = session(given.master, "round trip", **conf)
    trip = RoundTrip(spark, given.uri, given.records, given.folder)
    try:
        trip.run()
    finally:
        print(json.dumps(trip.seen))
        spark.stop()


if __name__ == "__main__":
    main()
