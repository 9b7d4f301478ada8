"""Scenarios 23 to 27: what a bookie may not forget, deny or delete."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from quire.codec.wire.codes import Status
from quire.errors import EntriesUnknown, NoSuchLedger, RecoveryFailed, WrongDisk
from quire.ledger.writing.writer import LedgerWriter
from quire.rpc import BookieChannel
from quire.runtime import Disk, StrPath, read_file
from quire.testing import SimDisk
from quire.types import NO_ENTRY, EntryId, LedgerId, LedgerState
from tests.simulation.scenarios.stage import SEEDS, Stage, payloads, play, read_all
from tests.support.raw_bookie_client import (
    KEY,
    LEDGER,
    V2,
    V3,
    Answer,
    Version,
    World,
    bookie_settings,
    entry,
    with_bookie,
)

every_seed = pytest.mark.parametrize("seed", SEEDS)
versions = pytest.mark.parametrize("version", [V2, V3], ids=["v2", "v3"])
DAMAGED = b"entry 7"  # The payload of entry 7.


@pytest.mark.parametrize("power_loss", [False, True], ids=["killed", "power lost"])
@versions
@every_seed
def test_scenario_23_a_fence_of_an_unknown_ledger_outlives_a_kill_right_after_its_answer(
    seed: int, version: Version, power_loss: bool
) -> None:
    async def check(world: World) -> None:
        assert not world.storage.is_here(LEDGER)
        assert (await world.client.read(version, LEDGER, -1, fence=KEY)).status is Status.ENOENTRY
        index = world.bookie.index
        (index.crash if power_loss else index.kill)()  # First, so that the dying process cannot write to it any more.
        await world.bookie.crash(power_loss=power_loss)
        await world.bookie.start()
        world.client = await world.connect()
        assert await world.client.add(version, LEDGER, 0) == Answer(Status.EFENCED, LEDGER, 0)
        assert await world.client.add(version, LEDGER, 0, recovery=True) == Answer(Status.EOK, LEDGER, 0)

    with_bookie(check, seed=seed)


# --- Damage


async def written(stage: Stage, *, closed: bool) -> LedgerWriter:
    """A ledger with the entries 0 to 9 on three bookies, closed or left by its writer; then they know of the LAC 4."""
    client = await stage.client("writer")
    writer = await client.create(3, 3, 2)
    for payload in payloads(5):
        await writer.append(payload)
    await writer.append_many(payloads(10)[5:])
    await stage.until(lambda: len(stage.heard("add", answer=True)) == 30)
    if closed:
        await writer.close()
    else:
        client.cut_off()
    return writer


async def damage(disk: SimDisk, folder: str) -> None:
    """Flip a bit of the entry, wherever it is in the files of a folder."""
    count = 0
    for name in await disk.listdir(folder):
        at = (await read_file(disk, f"{folder}/{name}")).find(DAMAGED)
        if at >= 0:
            disk.flip_bit(f"{folder}/{name}", at)
            count += 1
    assert count == 1


async def ask(stage: Stage, bookie: str, ledger_id: LedgerId, entry_id: int) -> bytes:
    """Ask one bookie, in version 3."""
    runtime = stage.sim.host("asker").runtime
    async with await BookieChannel.connect(runtime, bookie, stage.bookies[bookie].port) as channel:
        return (await channel.read(ledger_id, EntryId(entry_id), version=3)).body or b""


async def damaged_logs(stage: Stage, *places: int, closed: bool) -> LedgerWriter:
    """The same, with entry 7 damaged in the entry logs of some of its bookies."""
    writer = await written(stage, closed=closed)
    for place in places:
        bookie = stage.bookies[writer.metadata.metadata.fragments[0].bookies[place]]
        await bookie.stop()
        await damage(bookie.host.disk, "/data/entries")
        await bookie.start()
    return writer


@every_seed
def test_scenario_24_a_damaged_record_is_an_error_and_another_replica_is_asked(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Entry 7 is first asked of place 1. The bookie whose copy is bad is told."""

    async def scene(stage: Stage) -> None:
        writer = await damaged_logs(stage, 1, closed=True)
        first, second = (writer.metadata.metadata.fragments[0].bookies[place] for place in (1, 2))
        client = await stage.client()
        async with client.ledgers.open(writer.id) as reader:
            assert (await reader.read_entry(EntryId(7))).payload == DAMAGED
        answers = stage.heard("read", answer=True, entries={7}, client="client")
        assert [(each.bookie, each.status) for each in answers] == [(first, Status.EIO), (second, Status.EOK)]
        (told,) = [record.facts for record in caplog.records if "ledger.damaged_copy" in record.message]  # type: ignore[attr-defined]
        assert (told["ledger_id"], told["entry_id"], told["bookie"]) == (writer.id, 7, first)
        assert f"bookie {first} answered EIO" in told["error"]
        assert client.ledgers.statistics().damaged_copies == 1

    caplog.set_level(logging.WARNING, logger="quire")
    play(scene, seed)


@pytest.mark.parametrize("places", [(0, 1), (1, 2), (0, 2)])
@every_seed
def test_scenario_24_damaged_records_never_end_a_ledger(seed: int, places: tuple[int, int]) -> None:
    """Two denials would: entry 7 would be absent. While the one good copy is out of reach nobody knows."""

    async def scene(stage: Stage) -> None:
        writer = await damaged_logs(stage, *places, closed=False)
        ensemble = writer.metadata.metadata.fragments[0].bookies
        client = await stage.client()
        (intact,) = set(range(3)) - set(places)
        stage.sim.network.partition("client", ensemble[intact])
        with pytest.raises(RecoveryFailed):
            await client.ledgers.recover(writer.id)
        assert (await stage.metadata(writer.id)).state is LedgerState.IN_RECOVERY
        answers = stage.heard("read", answer=True, entries={7}, client="client")
        assert {each.status for each in answers} == {Status.EUNKNOWNLEDGERSTATE}
        stage.sim.network.heal()
        await stage.pass_time(10.0)  # Until the client tries it again.
        assert (await client.ledgers.recover(writer.id)).metadata.last_entry_id == 9
        assert await read_all(client, writer.id) == payloads(10)

    play(scene, seed)


# --- Disks that were lost, whole or in part


async def wipe(disk: Disk, folder: str) -> None:
    for name in await disk.listdir(folder):
        path = f"{folder}/{name}"
        if path == "/data/entries":
            await wipe(disk, path)
        else:
            await disk.unlink(path)
    await disk.sync_directory(folder)


@pytest.mark.parametrize("folder", ["/data", "/journal0"])
@every_seed
def test_scenario_25_a_bookie_does_not_start_on_a_disk_that_was_wiped(seed: int, folder: str) -> None:
    async def scene(stage: Stage) -> None:
        writer = await written(stage, closed=False)
        name = writer.metadata.metadata.fragments[0].bookies[0]
        bookie = stage.bookies[name]
        await bookie.crash(power_loss=False)
        await wipe(bookie.host.disk, folder)
        for _ in range(2):  # Nor does it make itself at home there.
            with pytest.raises(WrongDisk):
                await bookie.start()
        assert name not in (await stage.cluster.bookies.listing()).writable
        assert await read_all(await stage.client(), writer.id) == payloads(10)

    play(scene, seed)


@every_seed
def test_scenario_25_what_a_bookie_lost_it_does_not_deny_until_it_has_it_again(seed: int) -> None:
    """A record of its journal is damaged, so that nobody knows what was in it: its ledgers are in limbo."""

    async def scene(stage: Stage) -> None:
        writer = await written(stage, closed=False)
        name = writer.metadata.metadata.fragments[0].bookies[0]
        bookie = stage.bookies[name]
        await bookie.crash(power_loss=False)
        await damage(bookie.host.disk, "/journal0")
        await bookie.start()
        assert await ask(stage, name, writer.id, 2)
        for entry_id in (7, 50, NO_ENTRY):
            with pytest.raises(EntriesUnknown):
                await ask(stage, name, writer.id, entry_id)
        client = await stage.client()
        assert (await client.ledgers.recover(writer.id)).metadata.last_entry_id == 9
        await stage.pass_time()
        assert DAMAGED in await ask(stage, name, writer.id, 7)
        assert await read_all(client, writer.id) == payloads(10)

    play(scene, seed, settings=bookie_settings(checkpoint_interval_s=1000))


@pytest.mark.parametrize("spare", [1, 0], ids=["another takes its place", "its place stays vacant"])
@every_seed
def test_scenario_25_a_bookie_in_limbo_has_failed_for_a_writer_which_goes_on(seed: int, spare: int) -> None:
    """It may have forgotten a fence, so it takes nothing. But that is no fence: nobody has begun a recovery."""

    async def scene(stage: Stage) -> None:
        client = await stage.client("writer")
        writer = await client.create(3, 3, 2)
        await writer.append_many(payloads(10))
        await stage.pass_time()
        name = writer.metadata.metadata.fragments[0].bookies[0]
        bookie = stage.bookies[name]
        await bookie.crash(power_loss=False)
        await damage(bookie.host.disk, "/journal0")
        await bookie.start()
        await stage.pass_time()
        await client.ledgers.pool.connect(name, 2, timeout_s=4.0)  # As for another ledger.
        assert await writer.append_many([b"entry 10", b"entry 11"]) == [10, 11]
        await stage.pass_time(5.0)  # Long enough to try the bookie again, if there is no other.
        assert await writer.append(b"entry 12") == 12
        assert (name in writer.metadata.metadata.fragments[-1].bookies) == (not spare)
        refusals = {each.status for each in stage.heard("add", answer=True, of=[name], entries={10, 11, 12})}
        assert refusals == {Status.EIO}, "version 2 has no other word for it"
        await writer.close()
        assert await read_all(await stage.client(), writer.id) == payloads(13)

    play(scene, seed, bookies=3 + spare, settings=bookie_settings(checkpoint_interval_s=1000))


@pytest.mark.parametrize("journals", [1, 2])
@versions
@every_seed
def test_scenario_26_a_crash_between_flush_and_mark_loses_nothing(seed: int, version: Version, journals: int) -> None:
    """The marks of all journals are one file, so there is one moment: the new file is written, and not in its place."""

    async def check(world: World) -> None:
        disk = world.bookie.host.disk
        ids = [(ledger_id, entry_id) for entry_id in range(20) for ledger_id in range(4)]
        for ledger_id, entry_id in ids[:60]:
            assert (await world.client.add(version, ledger_id, entry_id)).status is Status.EOK
        before, rename, marking = await read_file(disk, "/data/checkpoint"), disk.rename, asyncio.Event()

        async def stopping(source: StrPath, target: StrPath) -> None:
            if target == "/data/checkpoint":
                marking.set()
                await asyncio.Event().wait()
            await rename(source, target)

        disk.rename = stopping  # type: ignore[method-assign]
        checkpoint = asyncio.create_task(world.storage.checkpoint())
        async with asyncio.timeout(60):
            await marking.wait()
        for ledger_id, entry_id in ids[60:]:
            assert (await world.client.add(version, ledger_id, entry_id)).status is Status.EOK
        assert await read_file(disk, "/data/checkpoint") == before
        assert not checkpoint.done()
        await world.bookie.crash()
        checkpoint.cancel()
        await asyncio.gather(checkpoint, return_exceptions=True)
        await world.bookie.start()
        world.client = await world.connect()
        for ledger_id, entry_id in ids:
            answer = await world.client.read(version, ledger_id, entry_id)
            assert answer == Answer(Status.EOK, ledger_id, entry_id, entry(ledger_id, entry_id))

    with_bookie(check, seed=seed, settings=bookie_settings(journals=journals, checkpoint_interval_s=1000))


# --- Garbage


@pytest.mark.parametrize("moment", ["before the scan", "after the scan"])
@every_seed
def test_scenario_27_a_ledger_that_is_created_during_garbage_collection_stays(seed: int, moment: str) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create(ensemble=1, write_quorum=1, ack_quorum=1) as gone:
            await gone.append(b"gone")
        await client.ledgers.delete(gone.id)
        collector = stage.bookies["b0"].bookie.garbage
        assert collector is not None
        scanning, may_go_on = asyncio.Event(), asyncio.Event()
        scan = collector._ledgers.scan

        async def held() -> AsyncIterator[LedgerId]:
            found = [each async for each in scan()] if moment == "after the scan" else None
            scanning.set()
            await may_go_on.wait()
            for each in [each async for each in scan()] if found is None else found:
                yield each

        collector._ledgers.scan = held  # type: ignore[method-assign]
        collecting = asyncio.create_task(collector.collect())
        await scanning.wait()
        new = await client.create(1, 1, 1)
        await new.append(b"new")
        may_go_on.set()
        report = await collecting
        assert (report.outcome, report.ledgers_deleted) == ("done", 1)
        assert b"new" in await ask(stage, "b0", new.id, 0)
        with pytest.raises(NoSuchLedger):
            await ask(stage, "b0", gone.id, 0)

    play(scene, seed, bookies=1)
