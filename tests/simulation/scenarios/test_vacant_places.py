"""Bookies that fail where no other can take their place, and come back: three bookies, quorum 3/3/2."""

import asyncio
from dataclasses import replace

import pytest

from quire.ledger.repair.fragment_check import check_ledger, plain_reader
from quire.metadata.underreplication import Underreplication
from quire.types import BookieId, LedgerId, LedgerState
from tests.simulation.scenarios.stage import SEEDS, SETTINGS, Appends, Client, Stage, keys, payloads, play, read_all
from tests.support.tiers import one_in

every_seed = pytest.mark.parametrize("seed", one_in(5, SEEDS))


async def back(stage: Stage, client: Client, bookie: str) -> None:
    """Start a bookie that crashed, and wait until the client has heard of it."""
    await stage.until(lambda: bookie not in client.ledgers.pool.writable, f"{bookie} is missed")
    await stage.bookies[bookie].start()
    await stage.until(lambda: bookie in client.ledgers.pool.writable, f"{bookie} is listed")


async def marked(stage: Stage, ledger_id: LedgerId) -> tuple[str, ...]:
    """Whom autorecovery is told to look at; nobody if there is no mark."""
    cluster = stage.cluster
    mark = await Underreplication(cluster.store, cluster.uri.root, stage.sim.host("test").runtime, "").read_mark(
        ledger_id
    )
    return () if mark is None else mark.replicas


@every_seed
@pytest.mark.parametrize("pause_s", [0.0, 10.0])
@pytest.mark.parametrize("is_delayed", [False, True])
def test_bookies_are_restarted_one_after_the_other_and_no_append_fails(
    seed: int, pause_s: float, is_delayed: bool
) -> None:
    """The place of each stays vacant while it is away. Whoever came back is asked again when the next one goes, at the
    latest; after a pause it was asked already, and all three have what is written then."""

    async def scene(stage: Stage) -> None:
        client = await stage.client(settings=replace(SETTINGS, delay_ensemble_change=is_delayed))
        writer = await client.create(3, 3, 2)
        ensemble = writer.metadata.metadata.fragments[-1].bookies
        written = len(await writer.append_many(payloads(5)))
        for bookie in [*ensemble, *ensemble]:
            appends = Appends(writer)
            appends.start(4)
            await stage.crash(bookie)
            await appends.acknowledged()
            written += 4 + len(await writer.append_many(payloads(3)))
            await back(stage, client, bookie)
            await stage.pass_time(pause_s)
            if pause_s:
                entry_id = await writer.append(b"on all of them")
                written += 1
                await stage.until(lambda: len(stage.heard("add", answer=True, entries={entry_id})) == 3)  # noqa: B023
        await writer.close()
        metadata = await stage.metadata(writer.id)
        assert {fragment.bookies for fragment in metadata.fragments} == {ensemble}
        assert metadata.last_entry_id == written - 1
        assert len(await read_all(client, writer.id)) == written
        lacking = await check_ledger(
            plain_reader(client.ledgers, await stage.cluster.ledgers.read(writer.id)), set(ensemble), percentage=0.0
        )
        assert {bookie for each in lacking for bookie in each.bookies} == set(ensemble), "repairs find what each lacks"

    play(scene, seed)


@every_seed
def test_a_bookie_that_comes_later_takes_a_vacant_place(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        await stage.crash("b3")
        client = await stage.client()
        await stage.until(lambda: "b3" not in client.ledgers.pool.writable)
        writer = await client.create(3, 3, 2)
        await writer.append_many(payloads(5))
        await stage.crash("b1")
        await writer.append_many(payloads(5))
        await stage.bookies["b3"].start()
        await stage.until(lambda: len(writer.metadata.metadata.fragments) == 2, "somebody took the place")
        await writer.append_many(payloads(5))
        await writer.close()
        metadata = await stage.metadata(writer.id)
        assert keys(metadata) == [0, 10]
        assert set(metadata.fragments[-1].bookies) == {"b0", "b2", "b3"}
        assert len(await read_all(client, writer.id)) == 15

    play(scene, seed, bookies=4)


@every_seed
def test_one_that_is_back_and_fails_each_time_does_no_harm(seed: int) -> None:
    """It is left alone for longer each time, unless it is needed; the others suffice."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        sick = BookieId("b1")
        for _ in range(6):
            await writer.append_many(payloads(3))
            await stage.crash(sick)
            await writer.append_many(payloads(3))
            await back(stage, client, sick)
            await stage.pass_time(10.0)
        await writer.append_many(payloads(3))
        last = writer.last_add_confirmed
        assert not stage.heard("add", of={sick}, entries={last}), "nobody asks it any more"
        await stage.crash("b0")
        await writer.append_many(payloads(3))
        assert stage.heard("add", of={sick}, entries={last + 3}), "now it is needed"
        await writer.close()
        assert len(await read_all(client, writer.id)) == last + 4

    play(scene, seed)


@every_seed
def test_places_are_filled_only_by_bookies_that_can_be_reached(seed: int) -> None:
    """The client is cut off from a bookie and from the only spare one, both of which are listed all the time. It tries
    them again, less and less often."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        ensemble = writer.metadata.metadata.fragments[-1].bookies
        spare = next(iter(set(stage.bookies) - set(ensemble)))
        await writer.append_many(payloads(5))
        stage.sim.network.partition("client", spare)
        stage.sim.network.partition("client", ensemble[1])
        stalls = 0
        for _ in range(600):
            before_s = stage.sim.loop.time()
            await writer.append(b"more")
            stalls += stage.sim.loop.time() - before_s > 1.0
            await stage.pass_time(1.0)
        assert 1 <= stalls <= 8
        assert len(writer.metadata.metadata.fragments) <= 12
        await writer.close()

    play(scene, seed, bookies=4)


@every_seed
def test_a_store_that_is_away_while_a_place_could_be_filled_ends_no_writer(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        await writer.append_many(payloads(5))
        await stage.crash("b1")
        await writer.append_many(payloads(5))
        client.writes.is_cut_off = True
        await stage.bookies["b1"].start()
        await stage.until(lambda: len(client.writes.tried) > 1, "it tries to begin a fragment")
        await writer.append_many(payloads(5))
        client.writes.is_cut_off = False
        await stage.until(lambda: len(client.writes.stored) == 1)
        await writer.append_many(payloads(5))
        await writer.close()
        assert len(await read_all(client, writer.id)) == 20

    play(scene, seed)


# --- Marks


@every_seed
@pytest.mark.parametrize("bookies", [3, 4])
@pytest.mark.parametrize("is_back", [False, True])
def test_a_writer_that_closes_a_ledger_with_a_hole_marks_it_at_once(seed: int, bookies: int, is_back: bool) -> None:
    """Also if the bookie has been back for long, or another one took its place: it lacks what it was not sent."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        failed = writer.metadata.metadata.fragments[-1].bookies[1]
        await writer.append_many(payloads(5))
        stage.sim.network.partition("client", failed)
        await writer.append_many(payloads(5))
        await stage.crash(failed)
        await writer.append_many(payloads(5))
        if is_back:
            stage.sim.network.heal()
            await back(stage, client, failed)
            await stage.pass_time(10.0)
            await writer.append_many(payloads(5))
        assert await marked(stage, writer.id) == (), "the ledger is its writer's"
        await writer.close()
        assert await marked(stage, writer.id) == (failed,)

    play(scene, seed, bookies=bookies)


@every_seed
def test_nothing_is_marked_if_every_bookie_has_what_it_should(seed: int) -> None:
    """A bookie that fails when it has everything lacks nothing. Nor does one that is only slow."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        first, second, third = writer.metadata.metadata.fragments[-1].bookies
        await writer.append_many(payloads(5))
        await stage.pass_time()
        await stage.crash(first)
        stage.sim.network.link_latency_s[(second, "client")] = (0.5, 0.5)
        await writer.append_many(payloads(5))
        await writer.close()
        assert await marked(stage, writer.id) == ()
        assert third in (await stage.metadata(writer.id)).fragments[-1].bookies

    play(scene, seed, bookies=4)


@every_seed
def test_a_mark_that_cannot_be_made_fails_no_close(seed: int) -> None:
    """Autorecovery is disabled, or its tree does not answer: the close waits for it a moment only."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        hole, other = await client.create(3, 3, 2), await client.create(3, 3, 2)
        await stage.crash("b1")
        for writer in (hole, other):
            await writer.append_many(payloads(5))
        store, exists = client.ledgers._store, client.ledgers._store.exists
        marks = Underreplication(stage.cluster.store, stage.cluster.uri.root, stage.sim.host("test").runtime, "")
        await marks.prepare()
        await marks.disable()
        await hole.close()

        async def never(path: str) -> None:
            await asyncio.Event().wait()

        store.exists = never  # type: ignore[method-assign]
        began_s = stage.sim.loop.time()
        await other.close()
        assert stage.sim.loop.time() - began_s < 3.0
        store.exists = exists  # type: ignore[method-assign]
        for ledger_id in (hole.id, other.id):
            assert (await stage.metadata(ledger_id)).state is LedgerState.CLOSED
            assert await marked(stage, ledger_id) == ()

    play(scene, seed)
