"""`quire autorecovery run --racks FILE` moves copies that stand in one rack, on real bookies."""

import asyncio
import sys
from pathlib import Path

import quire
from quire.types import LedgerId
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually

SETTINGS = ("recovery.placement_check_interval_s=1", "recovery.mark_misplaced=true", "recovery.idle_s=0.5")


async def members(cluster: SmallCluster, ledger: LedgerId) -> set[str]:
    async with quire.ledgers(cluster.metadata) as ledgers:
        (fragment,) = (await ledgers.ledgers_metadata.read(ledger)).metadata.fragments
        return set(fragment.bookies)


async def test_a_copy_goes_to_the_second_rack(tmp_path: Path) -> None:
    racks = tmp_path / "racks"
    racks.write_text("".join(f"bookie-{number} /rack-{number // 4}\n" for number in range(1, 5)))
    async with small_cluster(tmp_path / "cluster", bookies=3) as cluster:
        async with quire.ledgers(cluster.metadata) as ledgers, ledgers.create() as writer:
            await writer.append(b"paid")
        await cluster.start(4)
        options = [word for setting in SETTINGS for word in ("--set", setting)]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "quire", "autorecovery", "run", "--metadata", cluster.metadata),
            *("--racks", str(racks), *options),
        )
        try:

            async def is_moved() -> bool:
                return "bookie-4" in await members(cluster, writer.id)

            await eventually(is_moved, within_s=60, what="a copy is in the second rack")
        finally:
            process.terminate()
            await process.wait()
        assert len(await members(cluster, writer.id)) == 3
        async with quire.ledgers(cluster.metadata) as ledgers, ledgers.open(writer.id) as reader:
            assert [entry.payload async for entry in reader.read()] == [b"paid"]
