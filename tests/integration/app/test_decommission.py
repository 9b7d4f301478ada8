"""Letting a bookie go, on real bookies: drained, stopped, copied from the others, forgotten; and its disk replaced."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import quire
from quire.cli.main import app
from quire.errors import WrongDisk
from quire.metadata import ANY_VERSION
from quire.types import BookieId, Fragment, LedgerId
from tests.support.servers.small_bookies import SmallCluster, small_cluster
from tests.support.waiting import eventually


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[SmallCluster]:
    async with small_cluster(tmp_path / "cluster", bookies=4) as running:
        yield running


async def fragments(cluster: SmallCluster, ledger: LedgerId) -> tuple[Fragment, ...]:
    async with quire.ledgers(cluster.metadata) as ledgers:
        return (await ledgers.ledgers_metadata.read(ledger)).metadata.fragments


async def write_ledgers(cluster: SmallCluster, count: int) -> list[LedgerId]:
    written = []
    async with quire.ledgers(cluster.metadata) as ledgers:
        for number in range(count):
            async with ledgers.create() as ledger:
                for entry in range(5):
                    await ledger.append(b"ledger %d, entry %d" % (number, entry))
            written.append(ledger.id)
    return written


async def check_readable(cluster: SmallCluster, written: list[LedgerId]) -> None:
    async with quire.ledgers(cluster.metadata) as ledgers:
        for ledger in written:
            async with ledgers.open(ledger) as reader:
                assert len([entry async for entry in reader.read()]) == 5


async def test_a_bookie_is_drained_stopped_and_decommissioned(cluster: SmallCluster) -> None:
    """Method: six ledgers, and one that is being written. Its writer moves on by itself; every ledger has three copies
    on live bookies in the end, and the bookie is unknown."""
    written = await write_ledgers(cluster, 6)
    code, told = await cluster.run("bookie", "decommission", "bookie-1")
    assert (code, told["error"]["kind"]) == (1, "BookieRegistered")
    assert "quire bookie drain bookie-1" in told["error"]["hint"]
    code, told = await cluster.run("bookie", "drain", "bookie-1")
    assert (code, told["is_readonly"]) == (0, True)
    after = await write_ledgers(cluster, 4)
    for ledger in after:
        assert "bookie-1" not in (await fragments(cluster, ledger))[0].bookies, "it takes no new ledgers"
    code, told = await cluster.run("bookie", "undrain", "bookie-1")
    assert (code, told["is_readonly"]) == (0, False)

    async with quire.ledgers(cluster.metadata) as ledgers, ledgers.create(ensemble=4) as open_ledger:
        await open_ledger.append(b"ledger 9, entry 0")
        await cluster.run("bookie", "drain", "bookie-1")
        await cluster.stop(1)
        code, told = await cluster.run("bookie", "decommission", "bookie-1", "--plan")
        held = [each["ledger_id"] for each in told["ledgers"]]
        assert code == 0
        assert set(held) == {*[each for each in written if await names(cluster, each)], open_ledger.id}
        assert told["seconds_at_rate"] is not None
    code, told = await cluster.run("bookie", "decommission", "bookie-1")
    left = [each["ledger_id"] for each in told["left"]]
    assert (code, left) == (1, [open_ledger.id]), "four bookies for an ensemble of four: there is no other"
    assert "1 other writable bookies are needed, there are 0" in told["left"][0]["blocked"]
    assert not told["cookie_deleted"]
    await cluster.start(5)
    code, told = await cluster.run("bookie", "decommission", "bookie-1")
    assert (code, told["left"], told["cookie_deleted"]) == (0, [], True)
    for ledger in written:
        members = {bookie for each in await fragments(cluster, ledger) for bookie in each.bookies}
        assert members <= {"bookie-2", "bookie-3", "bookie-4", "bookie-5"}
    await check_readable(cluster, written)
    code, told = await cluster.run("bookie", "decommission", "bookie-1")
    assert (code, told["error"]["message"]) == (1, "this cluster knows no bookie 'bookie-1'")


async def names(cluster: SmallCluster, ledger: LedgerId) -> bool:
    return any(BookieId("bookie-1") in each.bookies for each in await fragments(cluster, ledger))


async def test_force_forgets_a_bookie_and_names_what_lost_a_copy(tmp_path: Path) -> None:
    async with small_cluster(tmp_path / "three", bookies=3) as cluster:
        (ledger,) = await write_ledgers(cluster, 1)
        await cluster.stop(1)
        code, told = await cluster.run("bookie", "decommission", "bookie-1", "--force")
        assert "--yes" in told["error"]["hint"], "it is not done without being asked"
        assert "forget bookie-1 even if it holds the only copies of something?" in told["error"]["message"]
        asked = await in_words(cluster, "bookie", "decommission", "bookie-1", "--force", answer="n\n")
        assert asked.exit_code == 1
        assert "forget bookie-1 even if it holds the only copies of something? [y/N]" in asked.output
        code, told = await cluster.run("bookie", "decommission", "bookie-1", "--force", "--yes")
        assert (code, told["cookie_deleted"]) == (1, True)
        assert [each["ledger_id"] for each in told["left"]] == [ledger]


async def test_an_operator_is_told_what_a_decommission_leaves_behind(tmp_path: Path) -> None:
    """Three bookies for an ensemble of three: there is no other for the copies of the one that goes."""
    async with small_cluster(tmp_path / "three", bookies=3) as cluster:
        (ledger,) = await write_ledgers(cluster, 1)
        await cluster.stop(1)
        kept = await in_words(cluster, "bookie", "decommission", "bookie-1")
        assert kept.exit_code == 1
        assert "bookie-1 is still needed: keep its disk. Run this again once that is solved." in kept.output
        forced = await in_words(cluster, "bookie", "decommission", "bookie-1", "--force", answer="y\n")
        assert forced.exit_code == 1
        assert "bookie-1 is forgotten. These ledgers have fewer copies for good." in forced.output
        assert str(ledger) in forced.output


async def in_words(cluster: SmallCluster, *options: str, answer: str = "") -> Result:
    """A command as at a terminal, where somebody answers."""
    command = [*options, "--metadata", cluster.metadata]
    return await asyncio.to_thread(
        lambda: CliRunner().invoke(app, command, input=answer, env={"FORCE_COLOR": "1", "COLUMNS": "200"})
    )


async def test_a_ledger_whose_metadata_cannot_be_read_keeps_the_cookie(cluster: SmallCluster) -> None:
    """It may be the only one that names the bookie, and nobody can tell."""
    (ledger,) = await write_ledgers(cluster, 1)
    async with quire.metadata.open_cluster(cluster.metadata) as opened:
        path = opened.ledgers.path(ledger)
        await opened.store.set(path, b"BookieMetadataFormatVersion\t3\n\xff\xff", expected=ANY_VERSION)
    await cluster.stop(1)
    for force, deleted in (((), False), (("--force", "--yes"), True)):
        code, told = await cluster.run("bookie", "decommission", "bookie-1", *force)
        assert (code, told["copied"], told["cookie_deleted"]) == (1, 0, deleted)
        (left,) = told["left"]
        assert left["ledger_id"] == ledger
        assert "its metadata cannot be read" in left["blocked"]


async def test_a_new_disk_under_the_same_name(cluster: SmallCluster) -> None:
    """Method: lose the disk of a bookie. An empty one is refused; the command says why, and what it advises works."""
    written = await write_ledgers(cluster, 3)
    await cluster.stop(2)
    data = cluster.folder / "bookie-2"
    shutil.rmtree(data)
    cluster.forget_index(2)
    with pytest.raises(WrongDisk):
        await cluster.start(2)
    options = ("--data", str(data), "--moves-with", str(cluster.folder), "--id", "bookie-2")
    code, told = await cluster.run("bookie", "cookie", "repair", *options, "--yes")
    assert (code, told["repair"], told["repaired"]) == (1, None, False)
    assert "quire bookie decommission bookie-2" in told["advice"]
    code, told = await cluster.run("bookie", "decommission", "bookie-2")
    assert (code, told["cookie_deleted"]) == (0, True)
    shutil.rmtree(data)
    cluster.forget_index(2)
    bookie = await cluster.start(2)

    async def is_back() -> bool:
        return bookie.is_ready and not bookie.is_readonly

    await eventually(is_back)
    await check_readable(cluster, written)


async def test_a_cookie_is_restored_from_its_other_copy(cluster: SmallCluster) -> None:
    """Method: lose the file in the folder, then the node in the store; each comes back from the other."""
    await write_ledgers(cluster, 3)
    await cluster.stop(2)
    data = cluster.folder / "bookie-2"
    options = ("--data", str(data), "--moves-with", str(cluster.folder), "--id", "bookie-2", "--yes")
    (data / "VERSION").unlink()
    code, told = await cluster.run("bookie", "cookie", "repair", *options)
    assert (code, told["repaired"]) == (0, True)
    assert "file VERSION" in told["repair"]
    code, shown = await cluster.run("bookie", "cookie", "show", "bookie-2")
    assert shown["ledger_dirs"] == ["bookie-2"]
    async with quire.metadata.open_cluster(cluster.metadata) as opened:
        stored = await opened.bookies.cookie(BookieId("bookie-2"))
        assert stored is not None
        await opened.bookies.delete_cookie(BookieId("bookie-2"), expected=stored.version)
    code, told = await cluster.run("bookie", "cookie", "repair", *options)
    assert (code, told["repair"]) == (0, "put the cookie of the folders into the metadata store")
    bookie = await cluster.start(2)
    assert bookie.is_ready
    code, told = await cluster.run("bookie", "cookie", "repair", *options)
    assert (code, told["fine"]) == (0, True)
