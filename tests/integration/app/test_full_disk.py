"""A full disk, from the first refusal to the way back, on a real bookie; and what `quire bookie status` says of it."""

from pathlib import Path

import quire
from quire.bookie.bookie import Bookie
from quire.types import BookieId, LedgerId
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually

DISK = 20 << 20  # Of which a twentieth, 1 MiB, is the limit.
ENTRY = bytes(range(256)) * 64
FULL = BookieId("bookie-1")


async def status(cluster: SmallCluster, code: int = 0) -> tuple[str, list[str], list[str]]:
    """State, reasons and steps, as the command shows them."""
    found, told = await cluster.run("bookie", "status", FULL)
    assert found == code
    (bookie,) = told["bookies"]
    return bookie["state"], bookie["reasons"], [step["what"] for step in bookie["details"]["steps"]]


async def test_a_full_bookie_turns_read_only_writers_move_on_and_deletion_brings_it_back(tmp_path: Path) -> None:
    """Method: a writer fills the small disk of one of four bookies. It must not notice. Old ledgers are deleted then,
    but for one that shares its entry logs with them: only compaction gets at the rest."""
    async with small_cluster(tmp_path / "cluster", bookies=0) as cluster:
        small = await cluster.start(1, disk_bytes=DISK)
        for number in (2, 3):
            await cluster.start(number)
        assert await status(cluster) == ("writable", [], [])
        async with quire.ledgers(cluster.metadata) as ledgers, ledgers.create() as kept:
            old: list[LedgerId] = []
            await kept.append(b"kept, in a log with others")
            while not small.is_readonly:
                async with ledgers.create() as ledger:
                    await ledger.enqueue([ENTRY] * 40)
                    await ledger.flush()
                old.append(ledger.id)
                await kept.append(b"kept")
                await looked_at(small)
                if len(old) == 2:
                    await cluster.start(4)  # Somebody to move on to. All old ledgers but two may have it.
                assert len(old) < 200
            await eventually(lambda: is_listed_readonly(ledgers), what="clients are told")
            state, reasons, steps = await status(cluster)
            assert state == "readonly"
            assert "adds are taken below" in reasons[0] or "adds at all are taken below" in reasons[0]
            assert steps[0].startswith("takes no ")

            before = kept.metadata.metadata.fragments
            await kept.append(b"the writer is elsewhere by now")
            after = kept.metadata.metadata.fragments
            if FULL in before[-1].bookies:
                assert FULL not in after[-1].bookies, "it moved on by an ensemble change"
            async with ledgers.create() as new:
                await new.append(b"new")
            assert FULL not in new.metadata.metadata.fragments[0].bookies

            for each in old:
                await ledgers.delete(each)
            await eventually(lambda: is_writable(small), what="room comes back by itself", within_s=60)
            state, reasons, steps = await status(cluster)
            assert (state, reasons) == ("writable", [])
            assert any(step.startswith("takes entries again") for step in steps)
            await eventually(lambda: has_told(cluster, "ledgers forgotten"), what="the deletion is told")
            await eventually(lambda: has_told(cluster, "compacted"), what="what is alive was copied together")
            async with ledgers.open(kept.id, recover=False) as reader:
                entries = [entry.payload async for entry in reader.read(0, 0)]
            assert entries == [b"kept, in a log with others"]


async def looked_at(bookie: Bookie) -> None:
    """The disk only says that it is full, and takes more: so nobody writes on before the bookie has asked it."""
    assert bookie.space is not None
    await bookie.space.check()


async def is_listed_readonly(ledgers: quire.LedgerClient) -> bool:
    return FULL in ledgers.pool.readonly


async def is_writable(bookie: Bookie) -> bool:
    return not bookie.is_readonly


async def has_told(cluster: SmallCluster, what: str) -> bool:
    return any(what in step for step in (await status(cluster))[2])
