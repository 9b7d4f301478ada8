"""Whose directories these are: what is accepted, what is refused, and what the refusal says."""

import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from quire.bookie.identity import (
    BookieFolders,
    Identity,
    hold_folders,
    mark_clean,
    mark_dirty,
    prove_identity,
    stored_bookie_id,
)
from quire.codec.cookie import Cookie, decode_cookie, encode_cookie
from quire.errors import (
    DamagedMetadata,
    FolderInUse,
    InvalidArgument,
    MetadataOutcomeUnknown,
    MetadataUnavailable,
    WrongDisk,
)
from quire.metadata import Bookies, Cluster, Version, init_cluster, open_store, parse_uri
from quire.runtime import read_file, replace_file
from quire.testing import SimHost, Simulation, simulate
from quire.types import BookieId

ID, OTHER_ID = BookieId("bk1:3181"), BookieId("bk2:3181")
FOLDERS = BookieFolders("/data", ("/data/journal", "/fast/journal"))
INSTANCE = "0e2d6a4a-6b52-4a7b-9b1f-0b9a5f1f5f10"
COOKIE = Cookie(ID, FOLDERS.journals, ("/data",), instance_id=INSTANCE)
NODE = f"/ledgers/cookies/{ID}"


class FaultyBookies(Bookies):
    """A view of the store in which something happens before and after the cookie is created."""

    async def before(self) -> None: ...

    async def after(self) -> None: ...

    async def create_cookie(self, cookie: Cookie) -> Version:
        await self.before()
        version = await super().create_cookie(cookie)
        await self.after()
        return version


class World:
    """A host and the metadata of its cluster."""

    def __init__(self, sim: Simulation, host: SimHost, cluster: Cluster) -> None:
        self.sim, self.host, self.cluster = sim, host, cluster
        self.bookies: Bookies = cluster.bookies

    def fault(self, view: type[FaultyBookies]) -> None:
        """Let the bookie see the store through this view."""
        paths = self.cluster.paths
        self.bookies = view(
            self.cluster.store,
            self.host.clock,
            writable_root=paths.writable,
            readonly_root=paths.readonly,
            cookies_root=paths.cookies,
        )

    async def prove(
        self,
        *,
        host: SimHost | None = None,
        folders: BookieFolders = FOLDERS,
        bookie_id: BookieId = ID,
        instance_id: str | None = INSTANCE,
    ) -> Identity:
        runtime = (host or self.host).runtime
        async with hold_folders(runtime, folders):
            return await prove_identity(runtime, folders, self.bookies, bookie_id=bookie_id, instance_id=instance_id)

    async def served(self) -> None:
        """The bookie has started, served, stored something and stopped."""
        await self.prove()
        await self.put("/data/checkpoint")
        await mark_dirty(self.host.disk, FOLDERS)
        await mark_clean(self.host.disk, FOLDERS)

    async def put(self, path: str, content: bytes = b"x") -> None:
        await self.host.disk.makedirs(path.rpartition("/")[0])
        await replace_file(self.host.disk, path, content)

    async def versions(self) -> list[bytes | None]:
        disk = self.host.disk
        paths = [f"{folder}/VERSION" for folder in FOLDERS.all]
        return [await read_file(disk, path) if await disk.exists(path) else None for path in paths]

    async def refusal(self, **options: object) -> WrongDisk:
        """How the bookie is refused. Nothing may have changed by it."""
        before = await self.versions(), await self.cluster.bookies.cookie(ID)
        with pytest.raises(WrongDisk) as caught:
            await self.prove(**options)  # type: ignore[arg-type]
        assert (await self.versions(), await self.cluster.bookies.cookie(ID)) == before
        return caught.value


def run(check: Callable[[World], Awaitable[None]], *, seeds: int = 3) -> None:
    async def main(sim: Simulation) -> None:
        uri, runtime = parse_uri("memory:"), sim.host("metadata").runtime
        async with open_store(uri, runtime=runtime) as store:
            await check(World(sim, sim.host("b1"), await init_cluster(store, uri, runtime)))

    for seed in range(seeds):
        simulate(seed, main)


# --- The first start


def test_a_new_bookie_gets_a_cookie_in_the_store_and_in_every_folder() -> None:
    async def check(world: World) -> None:
        assert await world.prove() == Identity(COOKIE, is_new=True, was_unclean=False)
        stored = await world.cluster.bookies.cookie(ID)
        assert stored is not None
        assert stored.cookie == COOKIE
        node = await world.cluster.store.get(NODE)
        assert await world.versions() == [node.data] * 3
        assert await world.prove() == Identity(COOKIE, is_new=True, was_unclean=False), "it has not served yet"

    run(check)


def test_a_new_file_system_and_our_own_files_are_no_data() -> None:
    async def check(world: World) -> None:
        for path in ("/data/lost+found/x", "/fast/journal/lost+found/x", "/data/reserve", "/data/READ_ONLY"):
            await world.put(path)
        assert (await world.prove()).is_new

    run(check)


def test_an_interrupted_first_start_is_continued() -> None:
    async def check(world: World) -> None:
        await world.put("/data/VERSION", encode_cookie(COOKIE))
        await world.put("/data/VERSION.new", b"torn")
        assert (await world.prove()).is_new
        assert await world.versions() == [encode_cookie(COOKIE)] * 3

    run(check)


def test_of_two_first_starts_one_wins_and_the_other_leaves_nothing_behind() -> None:
    """Method: the other machine's cookie, with the very same paths, arrives between our look and our own."""

    async def check(world: World) -> None:
        class Overtaken(FaultyBookies):
            async def before(self) -> None:
                await world.cluster.bookies.create_cookie(COOKIE)

        world.fault(Overtaken)
        with pytest.raises(WrongDisk, match="another bookie 'bk1:3181' started for the first time") as caught:
            await world.prove()
        assert "an id of its own" in caught.value.hint
        assert await world.versions() == [None, None, None]
        assert "has no file VERSION" in str(await world.refusal()), "and it is not let in on its next start either"

    run(check)


def test_a_first_start_that_cannot_reach_the_store_leaves_nothing_behind() -> None:
    """VERSION files would match the cookie of whoever gets this id meanwhile, on another machine."""

    async def check(world: World) -> None:
        class Unavailable(FaultyBookies):
            async def before(self) -> None:
                raise MetadataUnavailable("injected")

        world.fault(Unavailable)
        with pytest.raises(MetadataUnavailable):
            await world.prove()
        assert await world.versions() == [None, None, None]
        assert await world.host.disk.listdir("/data") == ["LOCK", "journal"]

    run(check)


@pytest.mark.parametrize("is_stored", [True, False])
def test_a_first_start_whose_answer_was_lost_finds_out_or_keeps_its_files(is_stored: bool) -> None:
    async def check(world: World) -> None:
        class Lost(FaultyBookies):
            async def before(self) -> None:
                if not is_stored:
                    raise MetadataOutcomeUnknown("injected")

            async def after(self) -> None:
                raise MetadataOutcomeUnknown("injected")

        world.fault(Lost)
        if is_stored:
            assert (await world.prove()).is_new
        else:
            with pytest.raises(MetadataOutcomeUnknown):
                await world.prove()
        assert await world.versions() == [encode_cookie(COOKIE)] * 3, "the cookie may arrive yet, and needs them"

    run(check)


# --- Refusals


def test_the_same_directories_are_accepted_again_and_are_not_new_any_more() -> None:
    async def check(world: World) -> None:
        await world.served()
        assert await world.prove() == Identity(COOKIE, is_new=False, was_unclean=False)

    run(check)


@pytest.mark.parametrize("folder", FOLDERS.all)
def test_a_wiped_folder_is_refused(folder: str) -> None:
    async def check(world: World) -> None:
        await world.served()
        disk = world.host.disk
        for name in await disk.listdir(folder):
            if await disk.exists(f"{folder}/{name}") and name != "journal":
                await disk.unlink(f"{folder}/{name}")
        refusal = await world.refusal()
        assert f"{folder} has no file VERSION: it was emptied, or is another disk" in refusal.facts["problems"]  # type: ignore[operator]
        assert "Mount the right disk" in refusal.hint
        assert "decommission" in refusal.hint

    run(check)


def test_a_folder_that_was_emptied_all_but_its_cookie_is_refused() -> None:
    async def check(world: World) -> None:
        await world.served()
        await world.host.disk.unlink("/data/checkpoint")
        assert "/data was in use, and is empty now" in str(await world.refusal())
        await mark_dirty(world.host.disk, FOLDERS)
        assert "/data was in use, and is empty now" in str(await world.refusal())

    run(check)


def test_data_without_a_cookie_in_the_store_is_refused() -> None:
    async def check(world: World) -> None:
        await world.put("/fast/journal/0000000000000001.journal")
        refusal = await world.refusal()
        assert "no cookie of this bookie, but there is data: /fast/journal/0000000000000001.journal" in str(refusal)
        assert "If it was decommissioned" in refusal.hint
        for number in range(7):
            await world.put(f"/data/entries/{number}")
            await world.put(f"/data/{number}")
        assert str(await world.refusal()).endswith("/data/0, /data/1, /data/2, /data/3, /data/4 and 4 more")

    run(check)


def test_a_decommissioned_bookie_does_not_come_back_with_its_old_data() -> None:
    async def check(world: World) -> None:
        await world.served()
        stored = await world.cluster.bookies.cookie(ID)
        assert stored is not None
        await world.cluster.bookies.delete_cookie(ID, expected=stored.version)
        assert "there is data: /data/checkpoint" in str(await world.refusal())
        await world.host.disk.unlink("/data/checkpoint")
        assert (await world.prove()).is_new

    run(check)


def test_what_lies_on_the_way_to_a_journal_folder_counts_as_data() -> None:
    async def check(world: World) -> None:
        folders = BookieFolders("/data", ("/data/journals/a", "/data/journals/b"))
        await world.put("/data/journals/c/old")
        assert "there is data: /data/journals/c" in str(await world.refusal(folders=folders))

    run(check)


def test_every_difference_is_listed() -> None:
    async def check(world: World) -> None:
        await world.served()
        folders = BookieFolders("/data", ("/fast/journal", "/data/journal"))
        refusal = await world.refusal(folders=folders, instance_id="another")
        listed = "the journal directories are listed differently", "the instance id is another here"
        for where in ("metadata store", "/data/VERSION", "/data/journal/VERSION", "/fast/journal/VERSION"):
            for difference in listed:
                assert any(
                    problem.startswith(f"in {'the ' if where == 'metadata store' else ''}{where}, {difference}")
                    for problem in refusal.facts["problems"]  # type: ignore[attr-defined]
                ), (where, difference)

    run(check)


def test_another_id_is_refused_and_the_id_of_the_disk_can_be_asked_for() -> None:
    async def check(world: World) -> None:
        assert await stored_bookie_id(world.host.disk, "/data") is None
        await world.served()
        refusal = await world.refusal(bookie_id=OTHER_ID)
        assert "in /data/VERSION, the bookie id is 'bk2:3181' here and 'bk1:3181' in the cookie" in str(refusal)
        assert "there is data: /data/checkpoint" in str(refusal)
        assert await stored_bookie_id(world.host.disk, "/data") == ID
        assert await world.cluster.bookies.known() == {ID}

    run(check)


def test_exchanged_folders_are_refused() -> None:
    """Two bookies on one machine, each started with the journal folder of the other."""

    async def check(world: World) -> None:
        first, second = BookieFolders("/1", ("/j1",)), BookieFolders("/2", ("/j2",))
        await world.prove(folders=first)
        await world.prove(folders=second, bookie_id=OTHER_ID)
        refusal = await world.refusal(folders=BookieFolders("/1", ("/j2",)))
        assert "in /j2/VERSION, the bookie id is 'bk1:3181' here and 'bk2:3181' in the cookie" in str(refusal)
        assert (await world.prove(folders=first)).cookie.ledger_dirs == ("/1",)

    run(check)


def test_another_machine_with_the_same_paths_is_refused() -> None:
    async def check(world: World) -> None:
        await world.served()
        refusal = await world.refusal(host=world.sim.host("b2"))
        assert "/data has no file VERSION" in str(refusal)

    run(check)


# --- Damage, and other releases


@pytest.mark.parametrize("content", [b"", b"5\nbookieHost: 7", b"2\n", b"\xff\n"])
def test_a_damaged_cookie_is_named(content: bytes) -> None:
    async def check(world: World) -> None:
        await world.served()
        await world.put("/fast/journal/VERSION", content)
        with pytest.raises(DamagedMetadata, match="'/fast/journal/VERSION' is damaged"):
            await world.prove()
        with pytest.raises(DamagedMetadata):
            await stored_bookie_id(world.host.disk, "/fast/journal")
        await world.put("/fast/journal/VERSION", encode_cookie(COOKIE))
        stat = await world.cluster.store.exists(NODE)
        assert stat is not None
        await world.cluster.store.set(NODE, content, expected=stat.version)
        with pytest.raises(DamagedMetadata, match="'bk1:3181' in the metadata store is damaged"):
            await world.prove()

    run(check)


@pytest.mark.parametrize("version", [4, 6])
def test_a_cookie_of_an_older_release_is_written_anew_and_one_of_a_newer_stays(version: int) -> None:
    async def check(world: World) -> None:
        await world.served()
        cookie = replace(COOKIE, layout_version=version)
        await world.put("/data/VERSION", encode_cookie(cookie))
        stored = await world.cluster.bookies.cookie(ID)
        assert stored is not None
        await world.cluster.bookies.update_cookie(cookie, expected=stored.version)
        assert not (await world.prove()).is_new
        expected = max(version, 5)
        node = await world.cluster.store.get(NODE)
        versions = [decode_cookie(data or b"").layout_version for data in await world.versions()]
        assert (versions, decode_cookie(node.data).layout_version) == ([expected, 5, 5], expected)

    run(check)


def test_an_error_of_the_disk_is_no_missing_cookie() -> None:
    async def check(world: World) -> None:
        await world.served()
        world.host.disk.faults.fail_reads("/data/VERSION", 0, 10)
        with pytest.raises(OSError, match="Input/output error") as caught:
            await world.prove()
        assert caught.value.errno == errno.EIO

    run(check)


# --- Folders, locks and marks


def test_a_second_process_is_kept_out_of_every_folder() -> None:
    async def check(world: World) -> None:
        runtime = world.host.runtime
        async with hold_folders(runtime, FOLDERS):
            for folders in (FOLDERS, BookieFolders("/elsewhere", ("/fast/journal",)), BookieFolders("/data/journal")):
                with pytest.raises(FolderInUse, match="is locked by a simulated process"):
                    async with hold_folders(runtime, folders):
                        pytest.fail("two processes in one folder")
            async with hold_folders(runtime, BookieFolders("/elsewhere")):
                pass  # The refused ones let go of what they had.
        async with hold_folders(runtime, FOLDERS):
            pass

    run(check)


def test_a_life_that_did_not_end_cleanly_is_remembered() -> None:
    async def check(world: World) -> None:
        await world.prove()
        await world.put("/data/checkpoint")
        await mark_dirty(world.host.disk, FOLDERS)
        await world.host.crash()
        assert await world.prove() == Identity(COOKIE, is_new=False, was_unclean=True)
        await mark_dirty(world.host.disk, FOLDERS)
        await mark_clean(world.host.disk, FOLDERS)
        await mark_clean(world.host.disk, FOLDERS)
        await world.host.crash()
        assert await world.prove() == Identity(COOKIE, is_new=False, was_unclean=False)

    run(check, seeds=30)


def test_folders_have_one_spelling_and_a_journal() -> None:
    assert BookieFolders("/data/").all == ("/data", "/data/journal")
    assert BookieFolders("/x/../data", ("/j//1/",)).all == ("/data", "/j/1")
    for data, journals in [("data", ()), ("/data", ("journal",)), ("/data", ("/data",)), ("/data", ("/j", "/j/"))]:
        with pytest.raises(InvalidArgument):
            BookieFolders(data, tuple(journals))
