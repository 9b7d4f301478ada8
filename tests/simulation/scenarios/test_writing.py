"""Scenarios 1 to 12: acknowledgements in order, and bookies that fail under the writer."""

import asyncio
from dataclasses import replace

import pytest

from quire.errors import AppendOutcomeUnknown, DuplicateEntryId, LedgerClosed, NotEnoughBookies
from quire.ledger.writing.writer import LedgerWriter
from quire.types import NO_ENTRY, BookieId, EntryId, Fragment, LedgerMetadata, LedgerState
from tests.simulation.scenarios.stage import SEEDS, Appends, Stage, keys, payloads, play, read_all

every_seed = pytest.mark.parametrize("seed", SEEDS)


def ensemble_of(writer: LedgerWriter) -> tuple[BookieId, ...]:
    return writer.metadata.metadata.fragments[-1].bookies


@every_seed
def test_scenario_01_two_acks_of_three_complete_an_add_and_in_id_order(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer = await (await stage.client()).create(3, 3, 2)
        silent, second, _ = ensemble_of(writer)
        never = stage.hold("add", answer=True, of={silent})
        later = stage.hold("add", answer=True, of={second})
        appends = Appends(writer)
        appends.start(20)
        await stage.until(lambda: len(later.messages) == len(never.messages) == 20)
        await stage.pass_time()
        assert appends.done == {}, "one ack is no quorum"
        later.release()
        await appends.acknowledged()
        assert sorted(appends.done) == list(range(20))
        assert all(lac >= entry_id for entry_id, lac in appends.done.items())
        assert len(never.messages) == 20, "the third has still not answered"
        assert writer.metadata.metadata.fragments[-1].bookies[0] == silent

    play(scene, seed)


@every_seed
def test_scenario_02_no_add_returns_before_an_older_one_that_is_delayed(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        writer = await (await stage.client()).create(3, 3, 2)
        delayed = stage.hold("add", answer=True, entries={3})
        appends = Appends(writer)
        appends.start(10)
        await stage.until(lambda: len(delayed.messages) == 3)
        await stage.until(lambda: len(stage.heard("add", answer=True, entries=range(4, 10))) == 18)
        await stage.pass_time()
        assert sorted(appends.done) == [0, 1, 2]
        assert writer.last_add_confirmed == 2
        delayed.release()
        await appends.acknowledged()
        assert {entry_id: lac for entry_id, lac in appends.done.items() if entry_id >= 3} == dict.fromkeys(
            range(3, 10), 9
        )

    play(scene, seed)


@every_seed
def test_scenario_03_entries_go_round_the_ensemble_and_reads_ask_in_that_order(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        places = {7: (2, 3, 4), 9: (4, 0, 1)}
        writer = await (await stage.client()).create(5, 3, 2)
        await writer.append_many(payloads(10))
        ensemble = ensemble_of(writer)
        for entry_id, expected in places.items():
            sent = [message.bookie for message in stage.heard("add", entries={entry_id})]
            assert sorted(sent) == sorted(ensemble[place] for place in expected)
        await writer.close()

        async def ask(name: str, entry_id: int) -> None:
            reader = await stage.client(name)
            slow = stage.hold("read", answer=True, client=name)
            async with reader.ledgers.open(writer.id) as ledger:
                read = ledger.read_entry(EntryId(entry_id))
                reading = stage.sim.host(name).spawn(read)
                await stage.until(lambda: len(slow.messages) == 3)
                asked = [message.bookie for message in stage.heard("read", client=name)]
                assert asked == [ensemble[place] for place in places[entry_id]]
                slow.release()
                assert (await reading).payload == b"entry %d" % entry_id

        for entry_id in places:
            await ask(f"reader of {entry_id}", entry_id)

    play(scene, seed, bookies=5)


@every_seed
def test_scenario_04_a_change_resends_what_the_new_bookie_should_have_and_acks_nothing_meanwhile(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(5, 3, 2)
        await writer.append_many(payloads(5))
        before = ensemble_of(writer)
        answers = stage.hold("add", answer=True, entries=range(5, 9))
        appends = Appends(writer)
        appends.start(4)
        await stage.until(lambda: len(answers.messages) == 12)
        client.writes.hold()
        await stage.crash(before[1])
        await stage.until(lambda: len(client.writes.tried) == 1)
        answers.release()
        await stage.pass_time()
        assert len(stage.heard("add", answer=True, entries=range(5, 9), of=set(before) - {before[1]})) == 10
        assert (appends.done, writer.last_add_confirmed) == ({}, 4), "something was acknowledged during the change"
        client.writes.release()
        await appends.acknowledged()
        metadata = await stage.metadata(writer.id)
        assert keys(metadata) == [0, 5]
        after = metadata.fragments[1].bookies
        assert [place for place in range(5) if after[place] != before[place]] == [1]
        await stage.pass_time()
        assert sorted(message.entry_id for message in stage.heard("add", of={after[1]})) == [5, 6]
        assert len(stage.heard("add", entries=range(5, 9))) == 12 + 2, "something else was sent again"

    play(scene, seed, bookies=6)


@pytest.mark.parametrize("acked", [0, 5])
@every_seed
def test_scenario_05_a_second_failure_replaces_the_key_of_a_fragment_without_acks(seed: int, acked: int) -> None:
    async def scene(stage: Stage) -> None:
        writer = await (await stage.client()).create(3, 3, 2)
        await writer.append_many(payloads(acked))
        first = ensemble_of(writer)
        answers = stage.hold("add", answer=True, entries={acked})
        appends = Appends(writer)
        appends.start(1)
        await stage.until(lambda: len(answers.messages) == 3)
        await stage.crash(first[1])
        await stage.until(lambda: ensemble_of(writer)[1] != first[1])
        expected = [0, 5] if acked else [0]
        assert keys(await stage.metadata(writer.id)) == expected
        await stage.until(lambda: ensemble_of(writer)[1] in answers.bookies)
        await stage.crash(first[2])
        await stage.until(lambda: ensemble_of(writer)[2] != first[2])
        metadata = await stage.metadata(writer.id)
        assert keys(metadata) == expected
        last = metadata.fragments[-1].bookies
        assert last[0] == first[0]
        assert len(set(last) & set(first)) == 1
        assert appends.done == {}
        answers.release()
        await appends.acknowledged()

    play(scene, seed, bookies=5)


@every_seed
def test_scenario_06_what_was_complete_is_acked_when_the_change_of_another_bookie_ends(seed: int) -> None:
    """Entry 4 is on places 0 and 1, entry 6 on 2 and 3. The bookie in place 3 fails."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(4, 2, 2)
        await writer.append_many(payloads(4))
        before = ensemble_of(writer)
        answers = stage.hold("add", answer=True, entries=range(4, 7), of=before)
        appends = Appends(writer)
        appends.start(3)
        await stage.until(lambda: len(answers.messages) == 6)
        client.writes.hold()
        await stage.crash(before[3])
        await stage.until(lambda: len(client.writes.tried) == 1)
        answers.release()
        await stage.pass_time()
        assert len(stage.heard("add", answer=True, entries={4})) == 2
        assert appends.done == {}
        from_new = stage.hold("add", answer=True, of=set(stage.bookies) - set(before))
        client.writes.release()
        await stage.until(lambda: 5 in appends.done)
        assert sorted(appends.done) == [4, 5]
        assert len(stage.heard("add", entries={4})) == 2, "nobody else was asked to store it"
        await stage.until(lambda: len(from_new.messages) == 1)
        from_new.release()
        await appends.acknowledged()

    play(scene, seed, bookies=5)


@pytest.mark.parametrize("who", ["the new one", "the third"])
@every_seed
def test_scenario_07_an_ack_of_a_bookie_that_was_replaced_counts_no_more(seed: int, who: str) -> None:
    """Entry 1 is complete on A and B while entry 0 holds it up. Then A is replaced by D."""

    async def scene(stage: Stage) -> None:
        writer = await (await stage.client()).create(3, 3, 2)
        a, b, c = ensemble_of(writer)
        older = stage.hold("add", answer=True, entries={0}, of={a, b, c})
        of_c = stage.hold("add", answer=True, entries={1}, of={c})
        of_new = stage.hold("add", answer=True, of=set(stage.bookies) - {a, b, c})
        appends = Appends(writer)
        appends.start(2)
        await stage.until(lambda: len(older.messages) == 3 and len(of_c.messages) == 1)
        await stage.until(lambda: len(stage.heard("add", answer=True, entries={1}, of={a, b})) == 2)
        await stage.pass_time()
        await stage.crash(a)
        await stage.until(lambda: len(of_new.messages) == 2)
        older.release()
        await stage.until(lambda: 0 in appends.done)
        await stage.pass_time()
        assert sorted(appends.done) == [0], "entry 1 has the ack of B only"
        (of_new if who == "the new one" else of_c).release()
        await appends.acknowledged()

    play(scene, seed, bookies=4)


@every_seed
def test_scenario_08_a_change_starts_over_when_a_new_bookie_fails_and_resends_to_all_that_are_new(seed: int) -> None:
    """A fails and D is to take its place. D and B fail before that is stored."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        writer = await client.create(3, 3, 2)
        await writer.append_many(payloads(5))
        a, b, c = ensemble_of(writer)
        answers = stage.hold("add", answer=True, entries=range(5, 8))
        appends = Appends(writer)
        appends.start(3)
        await stage.until(lambda: len(answers.messages) == 9)
        client.writes.hold()
        await stage.crash(a)
        await stage.until(lambda: len(client.writes.tried) == 1)
        d = client.writes.tried[0].fragments[-1].bookies[0]
        await stage.crash(d, b)
        await stage.pass_time()
        assert len(client.writes.tried) == 1
        client.writes.release()
        await stage.until(lambda: len(answers.messages) >= 9 and len(answers.bookies - {a, b, c, d}) == 2)
        metadata = await stage.metadata(writer.id)
        assert keys(metadata) == [0, 5]
        e, f, same = metadata.fragments[-1].bookies
        assert same == c
        assert not {e, f} & {a, b, c, d}
        for new in (e, f):
            assert [message.entry_id for message in stage.heard("add", of={new})] == [5, 6, 7]
        assert len(stage.heard("add", of={c}, entries=range(5, 8))) == 3, "C had them already"
        assert appends.done == {}
        answers.release()
        await appends.acknowledged()
        await writer.close()
        assert len(await read_all(client, writer.id)) == 8

    play(scene, seed, bookies=6)


@pytest.mark.parametrize(("ack_quorum", "failing"), [(3, 1), (2, 2)])
@every_seed
def test_scenario_09_without_a_spare_bookie_adds_fail_and_the_ledger_ends_at_its_lac(
    seed: int, ack_quorum: int, failing: int
) -> None:
    """One bookie less is no reason to end while the others are an ack quorum: see `EnsembleChange.vacant`."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create(ensemble=3, write_quorum=3, ack_quorum=ack_quorum) as writer:
            await writer.append_many(payloads(5))
            answers = stage.hold("add", answer=True, entries=range(5, 8))
            appends = Appends(writer)
            appends.start(3)
            await stage.until(lambda: len(answers.messages) == 9)
            await stage.crash(*ensemble_of(writer)[:failing])
            await appends.all_over()
            assert appends.done == {}
            assert [type(error) for error in appends.failures] == [AppendOutcomeUnknown] * 3
            assert all(isinstance(error.__cause__, NotEnoughBookies) for error in appends.failures)
        metadata = await stage.metadata(writer.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 4)
        assert metadata.length == sum(map(len, payloads(5)))

    play(scene, seed)


@every_seed
def test_scenario_10_a_writer_keeps_what_re_replication_changed_meanwhile(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client, worker = await stage.client(), await stage.client("worker")
        writer = await client.create(3, 3, 2)
        await writer.append_many(payloads(5))
        a, b, c = ensemble_of(writer)
        await stage.crash(a)
        while len(writer.metadata.metadata.fragments) == 1:
            await writer.append(b"more")
        await writer.append(b"in the second fragment")
        first = writer.metadata.metadata.fragments[1].first_entry_id
        spare = BookieId(next(iter(set(stage.bookies) - {a, b, c, *ensemble_of(writer)})))

        def repaired(metadata: LedgerMetadata) -> LedgerMetadata:
            fragment = Fragment(metadata.fragments[0].first_entry_id, (spare, b, c))
            return replace(metadata, fragments=(fragment, *metadata.fragments[1:]))

        ledgers = worker.ledgers.ledgers_metadata
        await ledgers.update(await ledgers.read(writer.id), repaired)
        tail = ensemble_of(writer)
        await stage.crash(tail[1])
        while ensemble_of(writer)[1] == tail[1]:
            await writer.append(b"more")
        assert client.writes.conflicts == 1
        metadata = await stage.metadata(writer.id)
        assert metadata.fragments[0] == Fragment(metadata.fragments[0].first_entry_id, (spare, b, c))
        assert metadata.fragments[1].bookies == tail
        assert keys(metadata)[:2] == [0, first]
        assert metadata.fragments[2].bookies == ensemble_of(writer)
        assert tail[1] not in ensemble_of(writer)

    play(scene, seed, bookies=6)


@every_seed
def test_scenario_11_deferred_adds_are_confirmed_by_a_force_of_all_bookies_and_a_close_cuts_the_rest(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2, deferred_sync=True) as writer:
            assert await writer.append_many(payloads(5)) == list(range(5))
            assert writer.last_add_confirmed == NO_ENTRY
            slow = stage.hold("force", answer=True, of={ensemble_of(writer)[1]})
            forcing = asyncio.create_task(writer.force())
            await stage.until(lambda: len(slow.messages) == 1)
            await stage.pass_time()
            assert {message.bookie for message in stage.heard("force", answer=True)} == set(ensemble_of(writer)) - {
                ensemble_of(writer)[1]
            }
            assert not forcing.done()
            assert writer.last_add_confirmed == NO_ENTRY, "two of three are not all"
            slow.release()
            assert await forcing == writer.last_add_confirmed == 4
            assert await writer.append_many(payloads(8)[5:]) == [5, 6, 7]
            assert writer.last_add_confirmed == 4
        metadata = await stage.metadata(writer.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 4)
        assert metadata.length == sum(map(len, payloads(5)))
        assert await read_all(client, writer.id) == payloads(5)

    play(scene, seed)


@every_seed
def test_scenario_11_a_force_fails_when_a_bookie_is_down(seed: int) -> None:
    """Also though a spare one is there: what the lost one acknowledged was never proven to be on its disk."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2, deferred_sync=True) as writer:
            await writer.append_many(payloads(5))
            assert await writer.force() == 4
            await writer.append_many(payloads(8)[5:])
            await stage.until(lambda: len(stage.heard("add", answer=True)) == 24)
            await stage.pass_time()
            await stage.crash(ensemble_of(writer)[seed % 3])
            with pytest.raises(AppendOutcomeUnknown):
                await writer.force()
            assert writer.last_add_confirmed == 4
        metadata = await stage.metadata(writer.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 4)
        assert keys(metadata) == [0], "no other bookie took its place"
        assert await read_all(client, writer.id) == payloads(5)

    play(scene, seed, bookies=4)


@every_seed
def test_scenario_11_a_force_fails_when_a_bookie_came_back_without_what_it_acknowledged(seed: int) -> None:
    """Power fails before its disk has the entries. When it is back it has nothing to force, and answers EOK."""

    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create(ensemble=3, write_quorum=3, ack_quorum=2, deferred_sync=True) as writer:
            await writer.append_many(payloads(2))
            assert await writer.force() == 1
            lost = stage.bookies[ensemble_of(writer)[seed % 3]]
            lost.host.disk.faults.latency_by_operation_s["sync"] = (3.0, 3.0)
            await writer.append_many(payloads(5)[2:])
            await stage.until(lambda: len(stage.heard("add", answer=True)) == 15)
            await stage.pass_time(0.1)
            await lost.crash()
            lost.host.disk.faults.latency_by_operation_s.clear()
            await lost.start()
            await stage.pass_time(5.0)  # Nothing is in flight, and the bookie can be reached again.
            with pytest.raises((AppendOutcomeUnknown, LedgerClosed)):
                await writer.force()
            assert writer.last_add_confirmed == 1
        metadata = await stage.metadata(writer.id)
        assert (metadata.state, metadata.last_entry_id) == (LedgerState.CLOSED, 1)
        assert await read_all(client, writer.id) == payloads(2)

    play(scene, seed)


@every_seed
def test_scenario_12_chosen_ids_are_acknowledged_without_gaps_and_only_once(seed: int) -> None:
    async def scene(stage: Stage) -> None:
        client = await stage.client()
        async with client.ledgers.create_advanced(ensemble=3, write_quorum=3, ack_quorum=2, ledger_id=77) as writer:
            assert writer.id == 77
            later = asyncio.create_task(writer.append(2, b"entry 2"))
            assert await writer.append(0, b"entry 0") == 0
            await stage.pass_time()
            assert not later.done()
            assert writer.last_add_confirmed == 0
            for taken in (2, 0):
                with pytest.raises(DuplicateEntryId):
                    await writer.append(taken, b"again")
            assert await writer.append(1, b"entry 1") == 1
            assert await later == 2
            with pytest.raises(DuplicateEntryId):
                await writer.append(2, b"again")
        assert await read_all(client, writer.id) == payloads(3)

    play(scene, seed)
