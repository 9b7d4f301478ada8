"""Marks, locks, the pause, the delay and the election, by two handles on one tree in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from uuid import uuid4

import pytest
from tests.support.waiting import eventually

from quire.codec import underreplication as codec
from quire.codec.layout import HIERARCHICAL
from quire.errors import LayoutMismatch, LockLost, SessionExpired
from quire.metadata import ANY_VERSION, Ledgers, MetadataStore, Version, open_store, parse_uri
from quire.metadata.drivers import memory
from quire.metadata.underreplication import Underreplication
from quire.runtime import real_runtime
from quire.types import BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Quorum

ROOT = "/ledgers"
BASE = f"{ROOT}/underreplication"
SEVEN = LedgerId(7)


@asynccontextmanager
async def handles(count: int = 2) -> AsyncIterator[list[tuple[MetadataStore, Underreplication]]]:
    uri = parse_uri(f"memory:{uuid4().hex}")
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(open_store(uri)) for _ in range(count)]
        await stores[0].create(ROOT)
        views = [Underreplication(store, ROOT, real_runtime(), f"n{number}") for number, store in enumerate(stores)]
        await views[0].prepare()
        yield list(zip(stores, views, strict=True))


async def test_a_mark_is_in_apaches_own_place_and_format() -> None:
    async with handles() as ((store, marks), (_, other)):
        assert await marks.mark(SEVEN, ["bk1:3181"])
        node = await store.get(f"{BASE}/ledgers/0000/0000/0000/0007/urL0000000007")
        assert codec.decode_mark(node.data).replicas == ("bk1:3181",)
        assert node.data.startswith(b'replica: "bk1:3181"\nctime: ')
        found = await other.read_mark(SEVEN)
        assert found is not None
        assert found.replicas == ("bk1:3181",)
        assert [mark.ledger_id async for mark in other.marks()] == [SEVEN]


async def test_a_second_mark_adds_what_is_new_and_nothing_else() -> None:
    async with handles() as ((_, marks), (_, other)):
        assert await marks.mark(SEVEN, ["a"])
        before = await marks.read_mark(SEVEN)
        assert not await other.mark(SEVEN, ["a"])
        assert await marks.read_mark(SEVEN) == before
        assert await other.mark(SEVEN, ["b", "a"])
        after = await marks.read_mark(SEVEN)
        assert after is not None
        assert after.replicas == ("a", "b")


async def test_only_one_takes_a_ledger_and_it_is_gone_when_it_is_done() -> None:
    async with handles() as ((store, marks), (_, other)):
        assert await marks.take() is None
        await marks.mark(SEVEN, ["a"])
        held = await marks.take()
        assert held is not None
        assert await other.take() is None
        assert await other.lock_holder(SEVEN) == "n0"
        assert await marks.finish(held)
        assert await other.read_mark(SEVEN) is None
        assert await other.lock_holder(SEVEN) is None
        assert (await store.children(f"{BASE}/ledgers")).names == (), "empty folders are removed"


async def test_a_ledger_that_was_marked_anew_stays_marked() -> None:
    async with handles() as ((_, marks), (_, other)):
        await marks.mark(SEVEN, ["a"])
        held = await marks.take()
        assert held is not None
        await other.mark(SEVEN, ["a"])  # The same bookie again: whoever works on it may have looked before.
        assert not await marks.finish(held)
        assert await other.read_mark(SEVEN) is not None
        assert await other.take() is not None


async def test_a_lock_goes_with_its_session() -> None:
    async with handles() as ((store, marks), (_, other)):
        await marks.mark(SEVEN, ["a"])
        held = await marks.take()
        assert held is not None
        _expire(store)
        assert await other.take() is not None
        await marks.release(held)
        assert await other.lock_holder(SEVEN) == "n1", "what is another's now is not removed"


async def test_whoever_lost_a_lock_does_not_give_back_the_one_it_took_since() -> None:
    """Method: somebody removes the lock, its holder takes it once more, and then lets go of the first one."""
    async with handles() as ((store, marks), (_, other)):
        await marks.mark(SEVEN, ["a"])
        lost = await marks.take()
        assert lost is not None
        await store.delete(f"{BASE}/{codec.lock_path(SEVEN)}", expected=ANY_VERSION)
        again = await marks.take()
        assert again is not None
        await marks.release(lost)
        assert await other.take() is None
        await marks.release(again)
        assert await other.take() is not None


async def test_only_a_ledger_among_those_that_are_wanted_is_taken() -> None:
    async with handles() as ((_, marks), (_, other)):
        await other.mark(SEVEN, ["a"])
        await other.mark(LedgerId(8), ["a"])
        held = await marks.take({LedgerId(8)})
        assert held is not None
        assert held.ledger_id == 8
        assert await marks.take({LedgerId(8)}) is None
        waiting = asyncio.create_task(marks.wait_work(60.0, {LedgerId(8)}))
        await asyncio.sleep(0)
        assert not waiting.done(), "the other one is no work for us"
        await marks.release(held)
        await waiting


async def test_a_mark_that_is_finished_while_it_is_set_again_is_set_again() -> None:
    """Method: between the look at the mark and the look at the lock, whoever works on it is done."""
    async with handles() as ((_, marks), (_, other)):
        await marks.mark(SEVEN, ["a"])
        held = await marks.take()

        class Late(Underreplication):
            async def lock_holder(self, ledger_id: LedgerId) -> str | None:
                assert held is not None
                await marks.finish(held)
                return await super().lock_holder(ledger_id)

        late = Late(other._store, ROOT, real_runtime(), "late")
        assert await late.mark(SEVEN, ["a"])
        assert await other.read_mark(SEVEN) is not None


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_a_ledger_is_not_changed_under_a_lock_that_is_lost(is_taken_over: bool) -> None:
    """Also where the next holder's node looks just like ours."""
    async with handles() as ((store, marks), (_, other)), AsyncExitStack() as stack:
        ledgers = Ledgers(store, ROOT, HIERARCHICAL, real_runtime().rng)
        fragments = (Fragment(EntryId(0), (BookieId("a"),)),)
        stored = await ledgers.create(LedgerMetadata(Quorum(1, 1, 1), fragments), with_id=7)

        def change(metadata: LedgerMetadata) -> LedgerMetadata:
            return metadata.updated(fragments=(Fragment(EntryId(0), (BookieId("b"),)),))

        async with marks.locked(SEVEN) as lock:
            assert lock is not None
            guard = lock.guard()
            _expire(store)
            if is_taken_over:
                assert await stack.enter_async_context(other.locked(SEVEN)) is not None
            with pytest.raises(LockLost):
                await ledgers.update(stored, change, guard=lock.guard)
            if not is_taken_over:
                with pytest.raises(LockLost):
                    await ledgers.update(stored, change, guard=lambda: guard)
        assert (await ledgers.read(SEVEN)).metadata.fragments == fragments
        async with marks.locked(LedgerId(8)) as held:
            assert held is not None
            await ledgers.update(stored, change, guard=held.guard)
        assert (await ledgers.read(SEVEN)).metadata.fragments != fragments


async def test_whoever_has_nothing_to_do_is_woken_by_a_mark_and_by_a_free_lock() -> None:
    async with handles() as ((_, marks), (_, other)):
        waiting = asyncio.create_task(other.wait_work(60.0))
        await asyncio.sleep(0)
        await marks.mark(SEVEN, ["a"])
        await waiting
        held = await marks.take()
        assert held is not None
        waiting = asyncio.create_task(other.wait_work(60.0))
        await asyncio.sleep(0)
        await marks.release(held)
        await waiting


async def test_everybody_waits_while_repairs_are_off() -> None:
    async with handles() as ((_, marks), (_, other)):
        assert await marks.disable()
        assert not await other.disable()
        assert not await other.is_enabled()
        waiting = asyncio.create_task(other.wait_enabled())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert await marks.enable()
        await waiting
        assert not await marks.enable()


async def test_each_write_of_the_delay_is_told_apart() -> None:
    async with handles() as ((store, marks), (_, other)):
        assert await other.delay() == (0, 0)
        await marks.ensure_delay(60)
        await marks.ensure_delay(90)
        first = await other.delay()
        assert first[0] == 60
        assert (await store.get(f"{BASE}/lostBookieRecoveryDelay")).data == b"60"
        await marks.set_delay(60)
        second = await other.delay()
        assert second[0] == 60
        assert second[1] != first[1]


async def test_the_end_of_a_check_is_kept_in_apaches_format() -> None:
    async with handles() as ((store, marks), (_, other)):
        assert await other.check_time_ms(codec.CHECK_ALL_LEDGERS_CTIME) is None
        for time_ms in (1, 1_700_000_000_000):
            await marks.set_check_time(codec.CHECK_ALL_LEDGERS_CTIME, time_ms)
        assert await other.check_time_ms(codec.CHECK_ALL_LEDGERS_CTIME) == 1_700_000_000_000
        assert (await store.get(f"{BASE}/checkallledgersctime")).data.hex() == "0880d095ffbc31"


async def test_the_lowest_vote_is_the_auditor_and_the_next_one_follows() -> None:
    async with handles(3) as ((first_store, first), (_, second), (_, third)):
        assert await third.auditor() is None
        terms: list[str] = []

        async def serve(view: Underreplication, name: str) -> None:
            async with view.elected():
                terms.append(name)
                await asyncio.Event().wait()

        tasks = []
        for view, name in ((first, "first"), (second, "second"), (third, "third")):
            tasks.append(asyncio.create_task(serve(view, name)))
            await eventually(lambda: _voted(first_store, len(tasks)))
        assert terms == ["first"]
        assert await third.auditor() == "n0"
        assert codec.decode_vote((await first_store.get(f"{BASE}/auditorelection")).data) == "n0"
        tasks[0].cancel()
        await eventually(lambda: _is(terms, ["first", "second"]))
        tasks[1].cancel()
        await eventually(lambda: _is(terms, ["first", "second", "third"]))
        assert await third.auditor() == "n2"
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert await third.auditor() is None


async def test_a_vote_that_somebody_removes_is_noticed() -> None:
    async with handles() as ((_, marks), (other_store, _)), marks.elected() as vote:
        losing = asyncio.create_task(marks.wait_vote_lost(vote))
        await asyncio.sleep(0)
        assert not losing.done()
        await other_store.delete(vote, expected=(await _stat(other_store, vote)))
        await losing


async def test_whoever_waits_with_a_lost_vote_is_told() -> None:
    async with handles() as ((_, first), (store, second)), first.elected():

        async def wait() -> None:
            async with second.elected():
                raise AssertionError("there is an auditor")

        waiting = asyncio.create_task(wait())
        await eventually(lambda: _voted(store, 2))
        _expire(store)
        with pytest.raises(SessionExpired):
            await waiting


async def test_a_tree_of_another_kind_is_refused() -> None:
    async with handles() as ((store, marks), _):
        layout = codec.encode_replication_layout(codec.ReplicationLayout("OTHER", 2))
        path = f"{BASE}/LAYOUT"
        await store.set(path, layout, expected=await _stat(store, path))
        with pytest.raises(LayoutMismatch, match="OTHER"):
            await marks.prepare()


# --- Steps


def _expire(store: MetadataStore) -> None:
    driver = store._driver
    assert isinstance(driver, memory.MemoryDriver)
    driver._tree.expire(driver.session)


async def _voted(store: MetadataStore, count: int) -> bool:
    if await store.exists(f"{BASE}/auditorelection") is None:
        return False
    return len((await store.children(f"{BASE}/auditorelection")).names) == count


async def _is(terms: list[str], wanted: list[str]) -> bool:
    return terms == wanted


async def _stat(store: MetadataStore, path: str) -> Version:
    stat = await store.exists(path)
    assert stat is not None
    return stat.version
