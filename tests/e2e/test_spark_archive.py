"""`quire archive` on real bookies: to cold storage, away from the bookies, and back."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import quire
from quire.cli.main import app
from quire.testing import LocalCluster

pytestmark = pytest.mark.xdist_group("spark")


def archived(cluster: LocalCluster, *arguments: str, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["archive", *arguments, "--uri", cluster.uri, "--json"])
    assert done.exit_code == code, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    assert "error" in told or told.pop("uri").startswith("distributedlog+sqlite:"), (
        "it says which log that was, past the proxies"
    )
    return told


def write_segments(cluster: LocalCluster, stream: str, *, segments: int, records: int) -> list[bytes]:
    """Each writer leaves one segment behind."""
    written: list[bytes] = []
    for number in range(segments):
        payloads = [b"%s-%d-%d" % (stream.encode(), number, each) for each in range(records)]
        with cluster.connect_sync() as client, client.open_writer(stream) as writer:
            writer.append_many(payloads)
        written += payloads
    return written


def read(cluster: LocalCluster, stream: str, count: int) -> list[bytes]:
    with cluster.connect_sync() as client, client.open_reader(stream) as reader:
        return [next(reader).payload for _ in range(count)]


def test_segments_go_to_cold_storage_and_back(spark: Any, quire_cluster: LocalCluster, tmp_path: Path) -> None:
    """Three segments of one stream and one of another: all are archived, all but the last ones leave the bookies, and
    readers notice nothing, neither then nor when the segments are back.
    """
    root = f"file:{tmp_path}/cold"
    orders = write_segments(quire_cluster, "orders", segments=3, records=100)
    payments = write_segments(quire_cluster, "payments", segments=1, records=10)
    told = archived(quire_cluster, "--to", root)
    assert [(each["stream"], each["lssn"], each["records"]) for each in told["archived"]] == [
        ("orders", 1, 100),
        ("orders", 2, 100),
        ("orders", 3, 100),
        ("payments", 1, 10),
    ]
    assert (told["failed"], told["dropped"]) == ([], [])
    assert len(list((tmp_path / "cold").rglob("*.parquet"))) == 4

    told = archived(quire_cluster, "--to", root, "--drop-hot-after", "7d")
    assert told == {"archived": [], "bytes": 0, "failed": [], "dropped": []}
    told = archived(quire_cluster, "--to", root, "--drop-hot")
    assert told["dropped"] == [{"stream": "orders", "lssn": 1}, {"stream": "orders", "lssn": 2}]
    assert read(quire_cluster, "orders", 300) == orders
    assert read(quire_cluster, "payments", 10) == payments

    told = archived(quire_cluster, "orders", "payments", "--restore")
    assert told == {"restored": {"orders": [2, 1], "payments": []}}
    assert read(quire_cluster, "orders", 300) == orders


def test_one_segment_that_cannot_be_copied_keeps_no_other_from_being_archived(
    spark: Any, quire_cluster: LocalCluster, tmp_path: Path
) -> None:
    """The ledger of the first segment is deleted behind the stream's back."""
    write_segments(quire_cluster, "orders", segments=2, records=10)
    with quire_cluster.connect_sync() as client:
        lost = client.stream_info("orders").segments[0].ledger_id

    async def delete() -> None:
        async with quire.ledgers(quire_cluster.ledgers_uri) as ledgers:
            await ledgers.delete(lost)

    asyncio.run(delete())
    told = archived(quire_cluster, "orders", "--to", f"file:{tmp_path}/cold", code=1)
    assert [each["lssn"] for each in told["archived"]] == [2]
    assert [(each["lssn"], each["kind"]) for each in told["failed"]] == [(1, "NoSuchLedger")]


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["orders"], "InvalidArgument"),
        (["--to", "ftp://somewhere"], "UnknownScheme"),
        (["--to", "memory:x"], "InvalidArgument"),
        (["nothing", "--to", "file:/tmp"], "NoSuchStream"),
        (["--restore"], "InvalidArgument"),
        (["orders", "--to", "file:/tmp", "--keep-hot", "much"], "InvalidArgument"),
    ],
)
def test_a_mistake_is_told(spark: Any, quire_cluster: LocalCluster, arguments: list[str], kind: str) -> None:
    told = archived(quire_cluster, *arguments, code=1)
    assert told["error"]["kind"] == kind
    assert told["error"]["hint"] or kind == "NoSuchStream"
