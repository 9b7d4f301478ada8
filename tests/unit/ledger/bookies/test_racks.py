"""Where bookies stand: what a map may say, what it means, and that changes of its file or node are picked up."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quire.errors import DamagedMetadata, InvalidArgument, MetadataUnavailable
from quire.ledger.bookies.racks import (
    LiveRacks,
    RackMap,
    parse_rack_lines,
    parse_rack_node,
    racks_from_file,
    racks_from_metadata,
)
from quire.metadata import ANY_VERSION, MetadataStore, StoreSettings
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.protocol.placement import BookieView
from quire.runtime import replace_file
from quire.testing import SimHost, Simulation, simulate
from quire.types import BookieId

A, B = BookieId("10.0.0.1:3181"), BookieId("storage-7")
PATH = "/racks"

# --- What a map says


def test_a_bookie_is_found_by_its_id_then_by_its_host_and_else_has_the_default() -> None:
    racks = RackMap({"10.0.0.1:3181": "/by-id", "10.0.0.1": "/by-address", "host": "/by-host"})
    assert racks.rack_of(A) == racks.rack_of(A, "host") == "/by-id"
    assert racks.rack_of(BookieId("10.0.0.1:3182")) == "/by-address"
    assert racks.rack_of(BookieId("10.0.0.1:3182"), "host") == "/by-host", "what it listens on counts, not its name"
    assert racks.rack_of(B, "host") == "/by-host"
    assert racks.rack_of(B, "elsewhere") == racks.rack_of(B) == "/default-rack"


def test_locations_are_what_a_view_takes() -> None:
    racks = RackMap({"10.0.0.1": "/a"})
    locations = racks.locations([A, B], {B: "10.0.0.1"})
    assert locations == {A: "/a", B: "/a"}
    assert BookieView(frozenset({A, B}), locations).rack_of(B) == "/a"


def test_the_default_has_as_many_parts_as_the_others() -> None:
    assert RackMap().default == RackMap({"a": "/r"}).default == "/default-rack"
    assert RackMap({"a": "/east/r"}).default == "/default-region/default-rack"
    assert RackMap({"a": "/r"}, "/lost").rack_of(B) == "/lost"


@pytest.mark.parametrize(
    ("racks", "default"),
    [({"a": "/r", "b": "/east/r"}, ""), ({"a": "/r"}, "/east/r"), ({"a": "r"}, ""), ({"a": "/a/b/c"}, ""), ({}, "r")],
)
def test_paths_that_do_not_fit_are_refused(racks: dict[str, str], default: str) -> None:
    with pytest.raises(InvalidArgument):
        RackMap(racks, default)


def test_lines_have_a_name_and_a_rack_and_may_have_comments() -> None:
    text = "# our racks\n\n10.0.0.1:3181\t /east/r1  # by the door\r\n  storage-7 /west/r4"
    assert parse_rack_lines(text, name="f") == RackMap({A: "/east/r1", B: "/west/r4"})
    assert parse_rack_lines("", name="f", default="/lost") == RackMap({}, "/lost")


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a /r\nb", 2, "line 2 of racks.txt has 1 words, not two"),
        ("a /r 3", 1, "line 1 of racks.txt has 3 words, not two"),
        ("# a\n\na r", 3, "line 3 of racks.txt: 'r' is not the path of a rack"),
        ("a /r\nb /r\na /s", 3, "line 3 of racks.txt names 'a' again, after line 1"),
        ("a /r\nb /east/r\nc /r", 2, "line 2 of racks.txt: some racks are in a region and others are not"),
    ],
)
def test_a_wrong_line_is_named(text: str, line: int, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_rack_lines(text, name="racks.txt")
    assert str(caught.value).startswith(message)
    assert caught.value.facts["line"] == line
    assert caught.value.hint


def test_a_line_that_contradicts_the_given_default_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"line 1 of f.*'/lost'"):
        parse_rack_lines("a /east/r", name="f", default="/lost")


@settings(deadline=None)
@given(st.text())
def test_any_text_is_a_map_or_a_named_line(text: str) -> None:
    try:
        parse_rack_lines(text, name="f")
    except InvalidArgument as error:
        assert "of f" in str(error)


def test_a_node_holds_a_json_object() -> None:
    assert parse_rack_node(b'{"storage-7": "/west/r4"}', path=PATH) == RackMap({B: "/west/r4"})
    assert parse_rack_node(b"", path=PATH) == RackMap()


@pytest.mark.parametrize(
    "data",
    [b"{", b"[]", b"null", b'"/r"', b'{"a": 1}', b'{"a": "r"}', b'{"a": {"rack": "/r"}}', b"\xff", b"[" * 100_000],
)
def test_another_node_is_damaged_and_named(data: bytes) -> None:
    with pytest.raises(DamagedMetadata, match="the rack map at '/racks'"):
        parse_rack_node(data, path=PATH)


@settings(deadline=None)
@given(st.binary())
def test_any_bytes_are_a_map_or_damaged(data: bytes) -> None:
    try:
        parse_rack_node(data, path=PATH)
    except DamagedMetadata as error:
        assert PATH in str(error)


# --- Following a file

FILE = "/racks.txt"


class Followed:
    """A host with a rack file, and what the follower told."""

    def __init__(self, host: SimHost) -> None:
        self.host = host
        self.told: list[RackMap] = []

    async def write(self, text: str | bytes) -> None:
        await replace_file(self.host.disk, FILE, text.encode() if isinstance(text, str) else text)

    @asynccontextmanager
    async def follow(self) -> AsyncIterator[LiveRacks]:
        async with racks_from_file(self.host.runtime, FILE, check_interval_s=10, on_change=self.told.append) as racks:
            yield racks

    async def next_check(self) -> None:
        await self.host.clock.sleep(10.5)


def on_file(check: Callable[[Followed], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        await check(Followed(sim.host("client")))

    for seed in range(3):
        simulate(seed, main)


def test_a_changed_file_is_picked_up() -> None:
    async def check(followed: Followed) -> None:
        await followed.write("storage-7 /r1")
        async with followed.follow() as racks:
            assert racks.current.rack_of(B) == "/r1"
            await followed.next_check()
            assert followed.told == [], "nothing has changed"
            await followed.write("storage-7 /r2")
            await followed.next_check()
            assert racks.current.rack_of(B) == "/r2"
            assert followed.told == [racks.current]
        await followed.write("storage-7 /r3")
        await followed.next_check()
        assert racks.current.rack_of(B) == "/r2", "nobody follows any more"

    on_file(check)


@pytest.mark.parametrize("broken", ["storage-7", b"\xff", None])
def test_a_broken_file_leaves_the_last_good_map_in_place_and_says_why(broken: str | bytes | None) -> None:
    async def check(followed: Followed) -> None:
        await followed.write("storage-7 /r1")
        async with followed.follow() as racks:
            if broken is None:
                await followed.host.disk.unlink(FILE)
            else:
                await followed.write(broken)
            await followed.next_check()
            assert racks.current.rack_of(B) == "/r1"
            assert FILE in (racks.problem or "")
            await followed.write("storage-7 /r1")
            await followed.next_check()
            assert racks.problem is None
            assert followed.told == [], "it is what it was"

    on_file(check)


@pytest.mark.parametrize("broken", ["storage-7", b"\xff", None])
def test_a_file_that_is_broken_at_the_start_is_an_error(broken: str | bytes | None) -> None:
    async def check(followed: Followed) -> None:
        if broken is not None:
            await followed.write(broken)
        with pytest.raises(InvalidArgument, match=FILE):
            async with followed.follow():
                pass

    on_file(check)


def test_a_problem_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check(followed: Followed) -> None:
        caplog.clear()
        await followed.write("storage-7 /r1")
        async with followed.follow():
            await followed.write("storage-7")
            for _ in range(3):
                await followed.next_check()
        assert [record.getMessage().split()[0] for record in caplog.records] == ["racks.unreadable"]

    on_file(check)


def test_an_error_of_the_callback_is_raised_at_the_end_of_the_block() -> None:
    async def check(followed: Followed) -> None:
        def fail(_: RackMap) -> None:
            raise ZeroDivisionError

        async def follow() -> None:
            async with racks_from_file(followed.host.runtime, FILE, check_interval_s=10, on_change=fail):
                await followed.write("storage-7 /r2")
                await followed.next_check()

        await followed.write("storage-7 /r1")
        with pytest.raises(ZeroDivisionError):
            await follow()

    on_file(check)


# --- Following a node


class Stored:
    """A metadata store with one client that follows and one that writes."""

    def __init__(self, sim: Simulation) -> None:
        self.sim, self.tree = sim, MemoryTree()
        self.told: asyncio.Queue[RackMap] = asyncio.Queue()

    def client(self, name: str) -> MetadataStore:
        settings = StoreSettings(operation_timeout_s=5, session_timeout_s=10)
        return MetadataStore(MemoryDriver(self.tree, settings, self.sim.host(name).runtime))

    @asynccontextmanager
    async def follow(self, store: MetadataStore) -> AsyncIterator[LiveRacks]:
        clock = self.sim.host("client").clock
        async with racks_from_metadata(store, clock, PATH, on_change=self.told.put_nowait) as racks:
            yield racks


def on_store(check: Callable[[Stored, MetadataStore, MetadataStore], Awaitable[None]]) -> None:
    async def main(sim: Simulation) -> None:
        stored = Stored(sim)
        async with stored.client("client") as client, stored.client("operator") as operator:
            await check(stored, client, operator)

    for seed in range(5):
        simulate(seed, main)


def test_a_node_is_followed_through_its_creation_its_changes_and_its_end() -> None:
    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        async with stored.follow(client) as racks:
            assert racks.current == RackMap()
            await operator.create(PATH, b'{"storage-7": "/r1"}')
            assert (await stored.told.get()).rack_of(B) == "/r1"
            await operator.set(PATH, b'{"storage-7": "/r2"}', expected=ANY_VERSION)
            assert (await stored.told.get()).rack_of(B) == "/r2"
            assert racks.current.rack_of(B) == "/r2"
            await operator.delete(PATH, expected=ANY_VERSION)
            assert await stored.told.get() == racks.current == RackMap()

    on_store(check)


def test_a_damaged_node_leaves_the_last_good_map_in_place() -> None:
    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        await operator.create(PATH, b'{"storage-7": "/r1"}')
        async with stored.follow(client) as racks:
            await operator.set(PATH, b"{", expected=ANY_VERSION)
            await asyncio.sleep(1)
            assert racks.current.rack_of(B) == "/r1"
            assert racks.problem is not None
            assert PATH in racks.problem
            await operator.set(PATH, b'{"storage-7": "/r2"}', expected=ANY_VERSION)
            assert (await stored.told.get()).rack_of(B) == "/r2"
            assert racks.problem is None

    on_store(check)


def test_a_node_that_is_damaged_at_the_start_is_an_error() -> None:
    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        await operator.create(PATH, b"{")
        with pytest.raises(DamagedMetadata):
            async with stored.follow(client):
                pass

    on_store(check)


def test_what_changed_while_the_store_was_out_of_reach_is_picked_up_after_it() -> None:
    """Longer than an operation may take, and longer than the session lives."""

    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        await operator.create(PATH, b'{"storage-7": "/r1"}')
        async with stored.follow(client) as racks:
            session = client.session
            stored.tree.disconnect(session)
            await operator.set(PATH, b'{"storage-7": "/r2"}', expected=ANY_VERSION)
            await asyncio.sleep(stored.sim.rng.choice([1, 7, 30]))
            assert racks.current.rack_of(B) == "/r1"
            stored.tree.reconnect(session)
            assert (await stored.told.get()).rack_of(B) == "/r2"
            assert racks.problem is None

    on_store(check)


def test_a_read_that_the_store_does_not_answer_is_tried_again() -> None:
    """No watch will tell: the change was told before the store went out of reach.

    Method: the store is cut off right after the change, at another moment with each seed.
    """
    tried_again = 0

    async def main(sim: Simulation) -> None:
        nonlocal tried_again
        stored = Stored(sim)
        async with stored.client("client") as client, stored.client("operator") as operator:
            await operator.create(PATH, b'{"storage-7": "/r1"}')
            async with stored.follow(client) as racks:
                await operator.set(PATH, b'{"storage-7": "/r2"}', expected=ANY_VERSION)
                for _ in range(sim.rng.randrange(3)):
                    await asyncio.sleep(0)
                stored.tree.disconnect(client.session)
                await asyncio.sleep(7)
                tried_again += racks.problem is not None
                stored.tree.reconnect(client.session)
                while racks.current.rack_of(B) != "/r2":
                    await stored.told.get()
                assert racks.problem is None

    for seed in range(20):
        simulate(seed, main)
    assert tried_again > 0


def test_a_store_that_is_out_of_reach_at_the_start_is_an_error() -> None:
    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        stored.tree.disconnect(client.session)
        with pytest.raises(MetadataUnavailable):
            async with stored.follow(client):
                pass
        stored.tree.reconnect(client.session)

    on_store(check)


def test_following_ends_quietly_with_the_store() -> None:
    async def check(stored: Stored, client: MetadataStore, operator: MetadataStore) -> None:
        await operator.create(PATH, b'{"storage-7": "/r1"}')
        async with stored.follow(client) as racks:
            await client.aclose()
            await operator.set(PATH, b'{"storage-7": "/r2"}', expected=ANY_VERSION)
            await asyncio.sleep(1)
            assert racks.current.rack_of(B) == "/r1"

    on_store(check)
