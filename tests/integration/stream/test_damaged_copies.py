"""A bit that flipped in a file of one bookie: the stream is read on from the others, and somebody is told where."""

import logging
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from quire.ledger.settings import LedgerSettings
from quire.stream.namespace import open_namespace
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
            flip_bit(cluster.folder / name)
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


def flip_bit(folder: Path) -> None:
    """Of the record that has the mark, wherever the entry logs of a bookie have it."""
    count = 0
    for path in folder.rglob("*.log"):
        data = bytearray(path.read_bytes())
        at = data.find(MARK)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            count += 1
    assert count == 1


def told(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [record.facts for record in caplog.records if getattr(record, "event", "") == "ledger.damaged_copy"]  # type: ignore[attr-defined]
