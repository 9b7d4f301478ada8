"""What a crash leaves of files and names: never less than was synced, never anything that was not written."""

from hypothesis import given
from hypothesis import strategies as st

from quire.testing.sim_rng import SimRng
from quire.testing.sim_stored import SECTOR_BYTES, StoredBytes, StoredNames

SEEDS = range(200)


def _crashed(content: StoredBytes, seed: int) -> bytes:
    content.crash(SimRng(seed))
    return bytes(content.visible[:])


offsets = st.integers(0, 3000)
blocks = st.binary(min_size=1, max_size=2000)
writes = st.lists(st.tuples(offsets, blocks), max_size=8)


@given(writes, writes, st.integers())
def test_synced_bytes_survive_wherever_nothing_was_written_over_them(
    synced: list[tuple[int, bytes]], unsynced: list[tuple[int, bytes]], seed: int
) -> None:
    """SyncedBytes, and each byte after a crash is one that was written there, or a zero of a lengthened file."""
    content = StoredBytes()
    for offset, data in synced:
        content.write(offset, data)
    content.sync(content.mark())
    before = bytes(content.visible[:])
    possible: dict[int, set[int]] = {}
    for offset, data in unsynced:
        content.write(offset, data)
        for index, byte in enumerate(data, offset):
            possible.setdefault(index, set()).add(byte)
    after = _crashed(content, seed)
    assert len(after) >= len(before)
    assert len(after) <= max([len(before), *(offset + len(data) for offset, data in unsynced)])
    for index, byte in enumerate(after):
        allowed = {before[index] if index < len(before) else 0} | possible.get(index, set())
        assert byte in allowed, index


@given(writes, st.integers(), st.integers())
def test_a_second_crash_changes_nothing_more(changes: list[tuple[int, bytes]], seed: int, other: int) -> None:
    content = StoredBytes()
    for offset, data in changes:
        content.write(offset, data)
    first = _crashed(content, seed)
    assert _crashed(content, other) == first


def test_an_unsynced_write_is_kept_by_some_seeds_lost_by_some_and_torn_by_others() -> None:
    data = b"x" * (3 * SECTOR_BYTES)
    found: set[str] = set()
    for seed in SEEDS:
        content = StoredBytes()
        content.write(0, data)
        after = _crashed(content, seed)
        if after == data:
            found.add("kept")
        elif after == b"":
            found.add("lost")
        elif data.startswith(after):
            found.add("prefix")
        elif after[: 2 * SECTOR_BYTES].strip(b"\0") == b"":
            found.add("late sectors without the first ones")
        if len(after) == len(data) and after.count(b"x") == 0:
            found.add("length without bytes")
        for start in range(0, len(after) - SECTOR_BYTES, SECTOR_BYTES):
            assert len(set(after[start : start + SECTOR_BYTES])) == 1, "a sector in the middle is whole or not there"
    assert found == {"kept", "lost", "prefix", "late sectors without the first ones", "length without bytes"}


def test_all_of_many_writes_are_lost_by_some_seeds_and_kept_by_others() -> None:
    sizes: set[int] = set()
    for seed in SEEDS:
        content = StoredBytes()
        for number in range(50):
            content.write(number, b"x")
        sizes.add(_crashed(content, seed).count(b"x"))
    assert {0, 50} < sizes


def test_a_sync_promises_only_what_was_written_before_its_mark() -> None:
    outcomes: set[bytes] = set()
    for seed in SEEDS:
        content = StoredBytes()
        content.write(0, b"before")
        mark = content.mark()
        content.write(6, b" after")
        content.sync(mark)
        outcomes.add(_crashed(content, seed))
    assert b"before" in outcomes
    assert b"before after" in outcomes
    assert all(outcome.startswith(b"before") for outcome in outcomes)


def test_cutting_a_file_is_undone_by_some_crashes() -> None:
    outcomes: set[bytes] = set()
    for seed in SEEDS:
        content = StoredBytes()
        content.write(0, b"long content")
        content.sync(content.mark())
        content.resize(4)
        outcomes.add(_crashed(content, seed))
    assert outcomes == {b"long content", b"long"}


def test_a_failed_sync_is_hidden_by_the_next_one_and_shows_at_the_crash() -> None:
    """FailedSync: a retry succeeds, reads show the data, and it may be gone all the same."""
    outcomes: set[bytes] = set()
    for seed in SEEDS:
        rng = SimRng(seed)
        content = StoredBytes()
        content.write(0, b"A")
        content.fail_sync(content.mark(), rng)
        content.write(1, b"B")
        content.sync(content.mark())
        assert content.visible[:] == b"AB"
        content.crash(rng)
        outcomes.add(bytes(content.visible[:]))
    assert outcomes == {b"AB", b"\0B"}


def test_a_flipped_bit_stays_flipped_through_a_crash() -> None:
    content = StoredBytes()
    content.write(0, b"\x00\x00")
    content.sync(content.mark())
    content.flip_bit(1, 3)
    assert content.visible[:] == b"\x00\x08"
    assert _crashed(content, 1) == b"\x00\x08"


def _names_after_crash(names: StoredNames, seed: int) -> tuple[str, ...]:
    names.crash(SimRng(seed))
    return tuple(sorted(names.files))


def test_of_unsynced_names_a_prefix_survives() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        names = StoredNames()
        for name in "abc":
            names.link(f"/d/{name}", StoredBytes())
        outcomes.add(_names_after_crash(names, seed))
    assert outcomes == {(), ("/d/a",), ("/d/a", "/d/b"), ("/d/a", "/d/b", "/d/c")}


def test_synced_names_survive_and_other_directories_are_on_their_own() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        names = StoredNames()
        names.link("/d/a", StoredBytes())
        names.link("/e/b", StoredBytes())
        names.sync("/d")
        outcomes.add(_names_after_crash(names, seed))
    assert outcomes == {("/d/a",), ("/d/a", "/e/b")}


def test_a_rename_that_was_not_synced_leaves_the_old_name_or_the_new_one() -> None:
    outcomes: set[tuple[str, ...]] = set()
    for seed in SEEDS:
        names = StoredNames()
        names.link("/d/old", StoredBytes())
        names.sync("/d")
        names.rename("/d/old", "/e/new")
        outcomes.add(_names_after_crash(names, seed))
    assert outcomes == {("/d/old",), ("/e/new",)}


def test_syncing_one_side_of_a_rename_syncs_what_came_before_it_on_the_other() -> None:
    """Otherwise the file's creation, synced later, would bring its old name back."""
    for seed in SEEDS:
        names = StoredNames()
        names.link("/d/old", StoredBytes())
        names.rename("/d/old", "/e/new")
        names.link("/d/later", StoredBytes())
        names.sync("/e")
        assert _names_after_crash(names, seed) in {("/e/new",), ("/d/later", "/e/new")}


def test_an_unlinked_file_may_come_back_with_its_content() -> None:
    outcomes: set[bytes | None] = set()
    for seed in SEEDS:
        names, content = StoredNames(), StoredBytes()
        content.write(0, b"deleted")
        content.sync(content.mark())
        names.link("/d/a", content)
        names.sync("/d")
        names.unlink("/d/a")
        names.crash(SimRng(seed))
        outcomes.add(bytes(names.files["/d/a"].visible[:]) if names.files else None)
    assert outcomes == {None, b"deleted"}


operations = st.lists(
    st.one_of(
        st.tuples(st.just("link"), st.sampled_from(["/d/a", "/d/b", "/e/a"]), st.just("")),
        st.tuples(st.just("unlink"), st.sampled_from(["/d/a", "/d/b", "/e/a"]), st.just("")),
        st.tuples(
            st.just("rename"), st.sampled_from(["/d/a", "/d/b", "/e/a"]), st.sampled_from(["/d/b", "/e/a", "/e/b"])
        ),
        st.tuples(st.just("sync"), st.sampled_from(["/d", "/e"]), st.just("")),
    ),
    max_size=12,
)


@given(operations, st.integers())
def test_syncing_every_directory_makes_every_name_survive(todo: list[tuple[str, str, str]], seed: int) -> None:
    names = StoredNames()
    for kind, path, target in todo:
        if kind == "link" and path not in names.files:
            names.link(path, StoredBytes())
        elif kind == "unlink" and path in names.files:
            names.unlink(path)
        elif kind == "rename" and path in names.files:
            names.rename(path, target)
        elif kind == "sync":
            names.sync(path)
    names.sync("/d")
    names.sync("/e")
    before = dict(names.files)
    names.crash(SimRng(seed))
    assert names.files == before


@given(operations, st.integers())
def test_no_file_has_two_names_after_a_crash(todo: list[tuple[str, str, str]], seed: int) -> None:
    names = StoredNames()
    for kind, path, target in todo:
        if kind == "link" and path not in names.files:
            names.link(path, StoredBytes())
        elif kind == "unlink" and path in names.files:
            names.unlink(path)
        elif kind == "rename" and path in names.files:
            names.rename(path, target)
        elif kind == "sync":
            names.sync(path)
    names.crash(SimRng(seed))
    assert len({id(content) for content in names.files.values()}) == len(names.files)
