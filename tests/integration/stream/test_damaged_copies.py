"""A bit that flipped in a file of one bookie: the stream is read on from the others, and somebody is told where."""

import asyncio
import logging
import math
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from quire.errors import DamagedEntry
from quire.ledger.settings import LedgerSettings
from quire.stream.namespace import open_namespace
from tests.support.bit_rot import flip_bit
from tests.support.servers.small_bookies import small_cluster

MARK = b"the fifth record"
IN_TURN = LedgerSettings(batch_reads=False)  # Each entry is asked for in the order of its bookies.


async def test_a_copy_that_rots_on_disk_is_told_by_its_place_in_the_stream(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Method: a bit of one record is flipped in the entry logs of the two bookies that are asked for it first, while
    they are stopped. Only the third one has it intact."""
    caplog.set_level(logging.WARNING, logger="quire.ledger")
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        async with open_namespace(cluster.uri, ledger_settings=IN_TURN) as namespace:
            await namespace.create_stream("orders")
            async with namespace.open_writer("orders") as writer:
                places = [await writer.append(b"%d" % number) for number in range(4)]
                places.append(await writer.append(MARK))
            segment = (await namespace.stream_info("orders")).segments[0]
            async with namespace.context.ledgers.open(segment.ledger_id) as ledger:
                asked = ledger.replicas_of(places[-1].entry_id)[:2]
        for name in asked:
            number = int(name.removeprefix("bookie-"))
            await cluster.stop(number)
            flip_bit(cluster.folder / name, MARK)
            await cluster.start(number)
        async with open_namespace(cluster.uri, ledger_settings=IN_TURN) as namespace:
            for _ in range(3):
                async with namespace.open_reader("orders") as reader:
                    assert [(await anext(reader)).payload for _ in range(5)] == [b"0", b"1", b"2", b"3", MARK]
            metrics = generate_latest(namespace.context.ledgers.metrics.registry).decode()
        assert [facts["bookie"] for facts in told(caplog)] == asked, "once for each, however often it is read"
        for facts in told(caplog):
            assert (facts["stream"], facts["lssn"], facts["entry_id"]) == ("orders", *places[-1][:2])
            assert "answered EIO for entry" in str(facts["error"])
        (line,) = [each for each in metrics.splitlines() if each.startswith("quire_ledger_damaged_copies_total")]
        assert float(line.split()[-1]) == 2, "then they are asked last"
        assert "quire_ledger_read_failures_total 0.0" in metrics


async def test_an_entry_that_rots_on_all_disks_is_told_at_once_and_skipped_on_demand(tmp_path: Path) -> None:
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        async with open_namespace(cluster.uri) as namespace:
            await namespace.create_stream("orders")
            async with namespace.open_writer("orders") as writer:
                for payload in (b"before", MARK, b"behind"):
                    place = await writer.append(payload)
        for number in range(1, 4):
            await cluster.stop(number)
            flip_bit(cluster.folder / f"bookie-{number}", MARK)
            await cluster.start(number)
        endless = LedgerSettings(read_patience_s=math.inf)
        async with asyncio.timeout(60.0), open_namespace(cluster.uri, ledger_settings=endless) as namespace:
            async with namespace.open_reader("orders") as reader:
                assert (await anext(reader)).payload == b"before"
                with pytest.raises(DamagedEntry) as damage:
                    await anext(reader)
                assert damage.value.facts["entry_id"] == place.entry_id - 1
            async with namespace.open_reader("orders", skip_damaged=True) as reader:
                assert [(await anext(reader)).payload for _ in range(2)] == [b"before", b"behind"]


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.facts for record in caplog.records if getattr(record, "event", "") == "ledger.damaged_copy"]  # type: ignore[attr-defined]
