"""`quire audit` on real bookies: it names every copy that is missing or damaged, and nothing else."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.stream.archiving import archive_stream
from quire.stream.cold_moves import DropPolicy, drop_hot
from quire.stream.namespace import open_namespace
from quire.testing import LocalCluster
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Lssn

pytestmark = pytest.mark.xdist_group("spark")


def audited(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(app, ["audit", *arguments, "--json"])
    return done.exit_code, json.loads(done.stdout)


def write(cluster: LocalCluster, stream: str, *records: bytes) -> tuple[LedgerId, list[BookieId]]:
    """Write a segment of one entry or more. Returns its ledger and the bookies that have it."""
    with cluster.connect_sync() as client, client.open_writer(stream) as writer:
        for record in records:
            writer.append(record)

    async def look() -> tuple[LedgerId, list[BookieId]]:
        async with open_namespace(cluster.uri) as namespace:
            ledger_id = (await namespace.stream_info(stream)).segments[0].ledger_id
            stored = await namespace.context.ledgers.ledgers_metadata.read(ledger_id)
            return ledger_id, list(stored.metadata.fragments[0].bookies)

    return asyncio.run(look())


def spoil(cluster: LocalCluster, bookie: BookieId, payload: bytes) -> None:
    """Change a byte of an entry on the disk of one bookie."""
    number = next(each.number for each in cluster.bookies if each.name == bookie)
    cluster.stop_bookie(number)
    for path in Path(cluster.folder, f"bookie-{number}").rglob("*"):
        data = path.read_bytes() if path.is_file() else b""
        if (place := data.find(payload)) >= 0:
            path.write_bytes(data[:place] + b"~" + data[place + 1 :])
    cluster.start_bookie(number)


def say_elsewhere(cluster: LocalCluster, ledger_id: LedgerId, bookie: BookieId, other: BookieId) -> None:
    """Let the metadata name a bookie that never got the entries."""

    def change(metadata: LedgerMetadata) -> LedgerMetadata | None:
        bookies = metadata.fragments[0].bookies
        moved = tuple(other if each == bookie else each for each in bookies)
        return None if moved == bookies else replace(metadata, fragments=(Fragment(EntryId(0), moved),))

    async def act() -> None:
        async with open_namespace(cluster.uri) as namespace:
            ledgers = namespace.context.ledgers.ledgers_metadata
            await ledgers.update(await ledgers.read(ledger_id), change)

    asyncio.run(act())


@pytest.mark.quire_bookies(4)
def test_an_audit_names_every_bad_copy(spark: Any, quire_cluster: LocalCluster) -> None:
    """Of one stream a copy is changed on a bookie's disk; those of the other are looked for where they never were."""
    orders, with_orders = write(quire_cluster, "orders", b"first-order", b"second-order", b"third-order")
    payments, with_payments = write(quire_cluster, "payments", b"payment")
    code, report = audited("--uri", quire_cluster.uri)
    assert (code, report["sound"], report["damage"]) == (0, True, [])
    assert (report["streams"], report["segments"]) == (["orders", "payments"], 2)
    assert report["copies"] == 3 * report["entries"] > 0

    spoil(quire_cluster, with_orders[0], b"second-order")
    stranger = next(BookieId(each.name) for each in quire_cluster.bookies if each.name not in with_payments)
    say_elsewhere(quire_cluster, payments, with_payments[1], stranger)
    code, report = audited("orders", "payments", "--uri", quire_cluster.uri)
    assert (code, report["sound"]) == (1, False)
    missing, entries = [each for each in report["damage"] if each["problem"] == "missing"], report["entries"]
    damaged = [each for each in report["damage"] if each["problem"] == "damaged"]
    assert len(missing) + len(damaged) == len(report["damage"])
    assert [(each["stream"], each["lssn"], each["ledger"], each["bookie"]) for each in damaged] == [
        ("orders", 1, orders, with_orders[0])
    ]
    assert damaged[0]["copies"] == 1
    assert {(each["stream"], each["ledger"], each["bookie"]) for each in missing} == {("payments", payments, stranger)}
    assert report["copies"] + report["bad_copies"] == 3 * entries


def test_an_audit_names_segments_whose_ledgers_are_gone_and_passes_dropped_ones_by(
    spark: Any, quire_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Method: of three segments the first is only in cold storage, and the ledger of the second is deleted."""
    for record in (b"first", b"second", b"third"):
        write(quire_cluster, "orders", record)

    async def drop_and_delete() -> LedgerId:
        async with open_namespace(quire_cluster.uri) as namespace:
            await archive_stream(namespace.context, "orders", f"file:{tmp_path / 'archive'}")
            assert await drop_hot(namespace.context, "orders", DropPolicy(before=Lssn(2))) == [1]
            ledger_id = (await namespace.stream_info("orders")).segments[1].ledger_id
            await namespace.context.ledgers.delete(ledger_id)
            return ledger_id

    lost = asyncio.run(drop_and_delete())
    code, report = audited("--uri", quire_cluster.uri)
    assert (code, report["sound"], report["damage"]) == (1, False, [])
    assert [(each["stream"], each["lssn"], each["ledger"]) for each in report["lost"]] == [("orders", 2, lost)]
    assert (report["segments"], report["gone_segments"]) == (1, 0)
    shown = CliRunner().invoke(app, ["audit", "orders", "--uri", quire_cluster.uri])
    assert (shown.exit_code, f"its ledger {lost} does not exist" in shown.stdout) == (1, True)


def test_an_audit_of_a_stream_that_is_not_there_says_so(spark: Any, quire_cluster: LocalCluster) -> None:
    code, report = audited("nothing", "--uri", quire_cluster.uri)
    assert (code, report["error"]["kind"]) == (1, "NoSuchStream")
