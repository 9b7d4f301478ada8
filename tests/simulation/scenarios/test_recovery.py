"""Scenarios 13 to 22: where a ledger ends when its writer is gone, or is about to be shut out."""

import asyncio

import pytest

from quire.codec.wire.codes import Status
from quire.errors import BookieUnavailable, LedgerFenced, NoSuchEntry, RecoveryFailed
from quire.ledger.writing.writer import LedgerWriter
from quire.types import BookieId, EntryId, LedgerMetadata, LedgerState
from tests.simulation.scenarios.stage import SEEDS, Appends, Client, Stage, keys, payloads, play, read_all

every_seed = pytest.mark.parametrize("seed", SEEDS)
more_seeds = pytest.mark.parametrize("seed", range(20))


def ensemble_of(writer: LedgerWriter) -> tuple[BookieId, ...]:
    return writer.metadata.metadata.fragments[-1].bookies


def end_of(metadata: LedgerMetadata) -> tuple[LedgerState, int]:
    return metadata.state, metadata.last_entry_id


async def unfinished(stage: Stage, *, on: int) -> tuple[LedgerWriter, tuple[BookieId, ...]]:
    """A ledger whose writer was lost when entry 10 was on the first `on` of three bookies, and acknowledged to nobody.

    Entries are sent one by one: a bookie that has entry 9 knows of the LAC 8.
    """
    client = await stage.client("writer")
    writer = await client.create(3, 3, 2)
    for payload in payloads(10):
        await writer.append(payload)
    ensemble = ensemble_of(writer)
    requests = stage.hold("add", entries={10}, of=set(ensemble[on:]))
    answers = stage.hold("add", answer=True, entries={10})
    appends = Appends(writer)
    appends.start(1)
    await stage.until(lambda: len(answers.messages) == on and len(requests.messages) == 3 - on)
    client.cut_off()
    await appends.all_over()
    assert appends.done == {}
    requests.drop()
    answers.drop()
    return writer, ensemble


@every_seed
def test_scenario_13_an_entry_on_an_ack_quorum_is_kept_though_its_writer_never_heard(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer, _ = await unfinished(stage, on=2)
        client = await stage.client()
        assert await read_all(client, writer.id) == [*payloads(10), b"payload"]
        assert end_of(await stage.metadata(writer.id)) == (LedgerState.CLOSED, 10)

    play(scene, seed)


@every_seed
def test_scenario_14_an_entry_on_one_bookie_is_written_back_to_all(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer, ensemble = await unfinished(stage, on=1)
        client = await stage.client()
        stored = await client.ledgers.recover(writer.id)
        assert end_of(stored.metadata) == (LedgerState.CLOSED, 10)
        assert {message.bookie for message in stage.heard("recovery add", entries={10})} == set(ensemble)
        await stage.pass_time()
        async with client.ledgers.open(writer.id) as reader:
            for bookie in ensemble:
                assert (await reader.read_from(bookie, EntryId(10), fence=False)).payload == b"payload"

    play(scene, seed)


@every_seed
def test_scenario_14_two_denials_end_the_ledger_when_the_one_copy_is_out_of_reach(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer, ensemble = await unfinished(stage, on=1)
        stage.sim.network.partition("client", ensemble[0])
        client = await stage.client()
        stored = await client.ledgers.recover(writer.id)
        assert end_of(stored.metadata) == (LedgerState.CLOSED, 9)
        denials = stage.heard("read", answer=True, entries={10})
        assert {(message.bookie, message.status) for message in denials} == {
            (bookie, Status.ENOENTRY) for bookie in ensemble[1:]
        }
        stage.sim.network.heal()
        assert await read_all(client, writer.id) == payloads(10)

    play(scene, seed)


@every_seed
def test_scenario_15_silence_is_no_denial(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer, ensemble = await unfinished(stage, on=0)
        client = await stage.client()
        silent = stage.hold("read", answer=True, entries={10}, of=set(ensemble[:2]))
        with pytest.raises(RecoveryFailed):
            await client.ledgers.recover(writer.id)
        assert len(silent.messages) == 2
        heard = stage.heard("read", answer=True, entries={10})
        assert [message.status for message in heard] == [Status.ENOENTRY]
        assert (await stage.metadata(writer.id)).state is LedgerState.IN_RECOVERY
        silent.drop()
        assert end_of((await client.ledgers.recover(writer.id)).metadata) == (LedgerState.CLOSED, 9)

    play(scene, seed)


@every_seed
def test_scenario_16_a_bookie_that_denied_an_entry_never_takes_it_afterwards(seed: int) -> None:
    """B0 has entry 5 and cannot be asked for it. The fence misses B2, which is asked for entry 5 all the same."""

    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        b0, b1, b2 = ensemble_of(writer)
        delayed = stage.hold("add", entries={5}, of={b1, b2})
        appends = Appends(writer)
        appends.start(1)
        await stage.until(lambda: len(stage.heard("add", answer=True, entries={5}, of={b0})) == 1)
        stage.hold("fence", entries={-1}, of={b2})
        stage.hold("fence", entries={5}, of={b0})
        stored = await client.ledgers.recover(writer.id)
        assert end_of(stored.metadata) == (LedgerState.CLOSED, 4)
        assert stage.heard("fence", entries={-1}, of={b2}) == []
        denial = stage.heard("read", answer=True, entries={5}, of={b2})
        assert [message.status for message in denial] == [Status.ENOENTRY]
        delayed.release(of={b2})
        await appends.all_over()
        late = stage.heard("add", answer=True, entries={5}, of={b2})
        assert [message.status for message in late] == [Status.EFENCED]
        assert appends.done == {}
        assert [type(error) for error in appends.failures] == [LedgerFenced]
        assert writer.last_add_confirmed == 4

    play(scene, seed)


@every_seed
def test_scenario_17_an_empty_last_fragment_ends_the_ledger_before_it(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        before = ensemble_of(writer)
        requests = stage.hold("add", entries={5})
        appends = Appends(writer)
        appends.start(1)
        await stage.until(lambda: len(requests.messages) == 3)
        await stage.crash(*before)
        await stage.until(lambda: not set(ensemble_of(writer)) & set(before))
        old.cut_off()
        await appends.all_over()
        for bookie in before:
            await stage.bookies[bookie].start()
        assert keys(await stage.metadata(writer.id)) == [0, 5]
        stored = await client.ledgers.recover(writer.id)
        assert end_of(stored.metadata) == (LedgerState.CLOSED, 4)
        assert stored.metadata.length == sum(map(len, payloads(5)))
        lacs = stage.heard("read", answer=True, entries={-1})
        assert lacs
        assert not any(message.has_entry for message in lacs), "somebody knew of a LAC"
        assert sorted({message.entry_id for message in stage.heard("fence")})[:2] == [-1, 5], "it starts at the key"
        assert {message.bookie for message in stage.heard("fence")} == set(ensemble_of(writer))
        assert stage.heard("recovery add") == []
        assert await read_all(client, writer.id) == payloads(5)

    play(scene, seed, bookies=6)


@every_seed
def test_scenario_18_a_bookie_replaced_during_write_back_is_published_with_the_end(seed: int) -> None:
    """The bookies know of the LAC 4, so 5 to 9 are written back. The first bookie dies with entry 7 on the way."""

    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        await writer.append_many(payloads(10)[5:])
        old.cut_off()
        before = ensemble_of(writer)
        requests = stage.hold("recovery add", entries={7, 8, 9}, of={before[0]})
        answers = stage.hold("add", answer=True, entries={7, 8, 9}, of=set(before))
        recovering = asyncio.create_task(client.ledgers.recover(writer.id))
        await stage.until(lambda: bool(requests.messages) and len(answers.messages) >= 2)
        await stage.pass_time()  # Entries 5 and 6 are confirmed by then.
        await stage.crash(before[0])
        await stage.until(lambda: bool(stage.heard("recovery add", entries={7}, of=set(stage.bookies) - set(before))))
        assert [metadata.state for metadata in client.writes.tried] == [LedgerState.IN_RECOVERY]
        answers.release()
        metadata = (await recovering).metadata
        assert [written.state for written in client.writes.tried] == [LedgerState.IN_RECOVERY, LedgerState.CLOSED]
        assert metadata == await stage.metadata(writer.id)
        assert end_of(metadata) == (LedgerState.CLOSED, 9)
        assert keys(metadata) == [0, 7]
        assert metadata.fragments[0].bookies == before
        new = metadata.fragments[1].bookies
        assert new[1:] == before[1:]
        assert new[0] not in before
        assert {message.entry_id for message in stage.heard("recovery add", of={new[0]})} == {7, 8, 9}
        assert await read_all(client, writer.id) == payloads(10)

    play(scene, seed, bookies=4)


@more_seeds
def test_scenario_19_two_recoveries_at_once_agree(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        old = await stage.client("writer")
        clients = [await stage.client(name) for name in ("first", "second")]
        writer = await old.create(5, 3, 2)
        await writer.append_many(payloads(5))
        for _ in range(4):  # Entries of which some bookies have heard, and others not.
            name = stage.sim.rng.choice(sorted(stage.bookies))
            stage.sim.network.link_latency_s["writer", name] = (0.05, 0.3)
        appends = Appends(writer)
        appends.start(10)
        await stage.pass_time(stage.sim.rng.random() * 0.4)

        async def recover(client: Client) -> LedgerMetadata:
            await stage.pass_time(stage.sim.rng.random() * 0.02)
            return (await client.ledgers.recover(writer.id)).metadata

        first, second = await asyncio.gather(*map(recover, clients))
        await appends.all_over()
        assert end_of(first) == end_of(second) == end_of(await stage.metadata(writer.id))
        assert first.last_entry_id >= max([4, *appends.done])
        for client in clients:
            entries = await read_all(client, writer.id)
            assert entries[:5] == payloads(5)
            assert entries[5:] == [b"payload"] * (first.last_entry_id - 4)

    play(scene, seed, bookies=5)


@every_seed
def test_scenario_20_a_writer_that_closes_during_a_recovery_has_the_last_word(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        reads = stage.hold("read", answer=True, entries={5}, client="client")
        recovering = asyncio.create_task(client.ledgers.recover(writer.id))
        await stage.until(lambda: len(reads.messages) == 3)
        assert (await stage.metadata(writer.id)).state is LedgerState.IN_RECOVERY
        await writer.close()
        closed = await stage.cluster.ledgers.read(writer.id)
        assert end_of(closed.metadata) == (LedgerState.CLOSED, 4)
        reads.release()
        assert (await recovering).version == closed.version, "the recovery adopts it and writes nothing"
        assert client.writes.conflicts == 1
        assert await stage.cluster.ledgers.read(writer.id) == closed
        assert await read_all(client, writer.id) == payloads(5)

    play(scene, seed)


@every_seed
def test_scenario_20_a_writer_that_does_not_know_the_fate_of_an_entry_leaves_the_end_to_the_recovery(seed: int) -> None:
    """Recovery may have shown entry 5 to readers already: a close at 4 would take it away from them."""

    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        answers = stage.hold("add", answer=True, entries={5}, client="writer")
        appends = Appends(writer)
        appends.start(1)
        await stage.until(lambda: len(answers.messages) == 3)
        reads = stage.hold("read", answer=True, entries={5}, client="client")
        recovering = asyncio.create_task(client.ledgers.recover(writer.id))
        await stage.until(lambda: len(reads.messages) == 3)
        with pytest.raises(LedgerFenced):
            await writer.close(drain=False)
        await appends.all_over()
        assert appends.done == {}
        reads.release()
        assert end_of((await recovering).metadata) == (LedgerState.CLOSED, 5)
        assert await read_all(client, writer.id) == [*payloads(5), b"payload"]

    play(scene, seed)


@pytest.mark.parametrize("winner", ["change", "recovery"])
@every_seed
def test_scenario_21_a_change_and_a_recovery_race_and_the_fence_follows_the_winner(seed: int, winner: str) -> None:
    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(3, 3, 2)
        await writer.append_many(payloads(5))
        before = ensemble_of(writer)
        answers = stage.hold("add", answer=True, entries={5}, client="writer")
        fences = stage.hold("fence", client="client")
        appends = Appends(writer)
        appends.start(1)
        await stage.until(lambda: len(answers.messages) == 3)
        client.writes.hold()
        old.writes.hold()
        recovering = asyncio.create_task(client.ledgers.recover(writer.id))
        await stage.crash(before[0])
        await stage.until(lambda: len(client.writes.tried) == len(old.writes.tried) == 1)
        first, second = (old, client) if winner == "change" else (client, old)
        first.writes.release()
        await stage.until(lambda: len(first.writes.stored) == 1)
        second.writes.release()
        await stage.until(lambda: second.writes.conflicts == 1)
        assert first.writes.conflicts == 0
        metadata = await stage.metadata(writer.id)
        await stage.bookies[before[0]].start()  # So that it could be fenced in either case.
        await stage.until(lambda: len(fences.messages) >= 2)
        await stage.pass_time(2.0)
        if winner == "change":
            assert keys(metadata) == [0, 5]
            assert before[0] not in metadata.fragments[-1].bookies
        else:
            assert keys(metadata) == [0]
            assert old.writes.stored == []
        target = set(metadata.fragments[-1].bookies)
        assert fences.bookies <= target
        assert len(fences.bookies & target) >= 2
        assert (metadata.fragments[-1].bookies[0] in fences.bookies) or winner == "recovery"
        fences.release()
        stored = await recovering
        answers.release()
        await appends.all_over()
        if winner == "recovery":
            assert [type(error) for error in appends.failures] == [LedgerFenced]
        assert set(appends.done) <= set(range(stored.metadata.last_entry_id + 1))
        assert keys(stored.metadata) == keys(metadata)

    play(scene, seed, bookies=4)


@every_seed
def test_scenario_22_an_ack_quorum_of_one_and_a_bookie_down_leave_nothing_to_guess(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client, old = await stage.client(), await stage.client("writer")
        writer = await old.create(2, 2, 1)
        down, up = ensemble_of(writer) if seed % 2 else reversed(ensemble_of(writer))
        kept = stage.hold("add", of={up})  # What was acknowledged last is on the bookie that goes down, only there.
        assert await writer.append(b"acknowledged") == 0
        old.cut_off()
        kept.drop()
        await stage.crash(down)
        with pytest.raises(BookieUnavailable):
            async with client.ledgers.open(writer.id, recover=False):
                pass
        assert (await stage.metadata(writer.id)).state is LedgerState.OPEN
        with pytest.raises(RecoveryFailed):
            async with client.ledgers.open(writer.id):
                pass
        assert (await stage.metadata(writer.id)).state is LedgerState.IN_RECOVERY
        await stage.bookies[down].start()
        await stage.pass_time(10.0)  # Until the client tries it again.
        assert await read_all(client, writer.id) == [b"acknowledged"]
        async with client.ledgers.open(writer.id) as reader:
            with pytest.raises(NoSuchEntry):
                await reader.read_entry(EntryId(1))

    play(scene, seed, bookies=2)
