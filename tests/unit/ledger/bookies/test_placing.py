"""How a client chooses bookies: the policy that was asked for, told of racks, room and the ledger's own metadata."""

import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.ledger.bookies.pool_world import World, in_world

from quire.errors import DamagedMetadata, InvalidArgument, NotEnoughBookies
from quire.ledger.bookies.placing import PlacementSettings, Placing, open_placing
from quire.ledger.client import LedgerClient, open_ledgers
from quire.ledger.metrics import LedgerMetrics
from quire.protocol.placement import NO_BOOKIES, NO_CUSTOM, Adherence, BookieView, Chance, RandomPlacement
from quire.runtime import replace_file
from quire.testing import SimBookie, Simulation, sim_cluster, simulate
from quire.types import BookieId, Fragment, LedgerMetadata, Quorum

THREE = Quorum(3, 3, 2)


@asynccontextmanager
async def placed(
    world: World, settings: PlacementSettings, hosts: Mapping[str, str]
) -> AsyncIterator[tuple[Placing, LedgerMetrics]]:
    """Choices among bookies of these ids at these hosts."""
    bookies = [await world.bookie(name, host).start() for name, host in hosts.items()]
    metrics = LedgerMetrics(world.runtime.clock.monotonic)
    async with (
        world.pool() as pool,
        open_placing(world.runtime, world.client, pool, settings, metrics) as placing,
    ):
        yield placing, metrics
    for bookie in bookies:
        await bookie.stop()


async def put_racks(world: World, racks: Mapping[str, str]) -> None:
    await world.cluster.store.create("/racks", json.dumps(racks).encode())


def metadata_of(bookies: tuple[BookieId, ...], custom: Mapping[str, bytes] = NO_CUSTOM) -> LedgerMetadata:
    return LedgerMetadata(Quorum(len(bookies), len(bookies), 2), (Fragment(0, bookies),), custom=custom)  # type: ignore[arg-type]


# --- Racks


@pytest.mark.parametrize("source", ["file", "metadata"])
@pytest.mark.parametrize("named", ["id", "host"])
def test_entries_are_spread_over_racks_that_a_map_names(source: str, named: str) -> None:
    """Five bookies in one rack, one in another: each ensemble has that one. The map names ids, or only hosts."""
    hosts = {f"b{number}": f"host{number}" for number in range(6)}
    racks = {(name if named == "id" else host): "/lone" if name == "b5" else "/full" for name, host in hosts.items()}
    where = {"racks_file": "/racks.txt"} if source == "file" else {"racks_node": "/racks"}

    async def check(world: World) -> None:
        await put_racks(world, racks)
        lines = "".join(f"{name} {rack}\n" for name, rack in racks.items())
        await replace_file(world.runtime.disk, "/racks.txt", lines.encode())
        async with placed(world, PlacementSettings(**where), hosts) as (placing, metrics):  # type: ignore[arg-type]
            for _ in range(20):
                assert "b5" in await placing.new_ensemble(THREE, {})
            ensemble = (BookieId("b5"), BookieId("b0"), BookieId("b1"))
            for _ in range(20):
                assert placing.replacement(metadata_of(ensemble), ensemble, 1, frozenset({ensemble[1]})) in hosts
            assert metrics.placement_failures.value == 0

    in_world(check)


def test_a_rule_that_cannot_be_kept_is_told_and_counted_or_enforced(caplog: pytest.LogCaptureFixture) -> None:
    hosts = {name: name for name in ("b0", "b1", "b2", "b3")}

    async def check(world: World) -> None:
        await put_racks(world, dict.fromkeys(hosts, "/one"))
        async with placed(world, PlacementSettings(racks_node="/racks"), hosts) as (placing, metrics):
            ensemble = await placing.new_ensemble(THREE, {})
            assert metrics.placement_failures.value == 1
            placing.replacement(metadata_of(ensemble), ensemble, 0, frozenset({ensemble[0]}))
            assert metrics.placement_failures.value == 2
            failed = frozenset(ensemble[:2])
            with pytest.raises(NotEnoughBookies):
                placing.replacement(metadata_of(ensemble), ensemble, 0, failed | {BookieId("b3")} | set(hosts))  # type: ignore[arg-type]

    async def check_enforced(world: World) -> None:
        await put_racks(world, dict.fromkeys(hosts, "/one"))
        enforced = PlacementSettings(racks_node="/racks", enforce_racks=True)
        async with placed(world, enforced, hosts) as (placing, metrics):
            with pytest.raises(NotEnoughBookies, match="spread"):
                await placing.new_ensemble(THREE, {})
            assert metrics.placement_failures.value == 0

    with caplog.at_level(logging.WARNING, "quire.ledger"):
        in_world(check)
    assert [record.__dict__["event"] for record in caplog.records] == ["placement.not_kept"] * 2
    in_world(check_enforced)


def test_while_several_are_replaced_only_the_outcome_is_judged() -> None:
    """Between the first and the second replacement the ensemble may break the rule. Nobody ever stores that."""
    hosts = {name: name for name in ("a0", "a1", "a2", "c0")}
    racks = {"a0": "/a", "a1": "/a", "a2": "/a", "c0": "/c"}

    async def check(world: World) -> None:
        await put_racks(world, {**racks, "gone1": "/a", "gone2": "/a"})
        async with placed(world, PlacementSettings(racks_node="/racks"), hosts) as (placing, metrics):
            await placing.new_ensemble(THREE, {})
            ensemble = (BookieId("a0"), BookieId("gone1"), BookieId("gone2"))
            failed = frozenset({BookieId("gone1"), BookieId("gone2"), BookieId("c0")})
            first = placing.replacement(metadata_of(ensemble), ensemble, 1, failed)
            assert metrics.placement_failures.value == 0
            changed = (ensemble[0], first, ensemble[2])
            placing.replacement(metadata_of(ensemble), changed, 2, failed)
            assert metrics.placement_failures.value == 1

    in_world(check)


def test_without_a_map_of_racks_nobody_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    async def check(world: World) -> None:
        async with placed(world, PlacementSettings(), {name: name for name in ("b0", "b1", "b2")}) as (
            placing,
            metrics,
        ):
            assert len(await placing.new_ensemble(THREE, {})) == 3
            assert metrics.placement_failures.value == 0

    in_world(check)
    assert caplog.records == []


def test_regions_are_survived() -> None:
    hosts = {name: name for name in ("e0", "e1", "e2", "w0", "w1", "w2")}

    async def check(world: World) -> None:
        await put_racks(world, {name: f"/{'east' if name[0] == 'e' else 'west'}/{name}" for name in hosts})
        async with placed(world, PlacementSettings("region-aware", racks_node="/racks"), hosts) as (placing, _):
            for _ in range(10):
                found = await placing.new_ensemble(Quorum(4, 4, 3), {})
                assert Counter(name[0] for name in found) == {"e": 2, "w": 2}

    in_world(check)


def test_the_first_bookie_is_of_the_clients_own_rack() -> None:
    hosts = {f"b{number}": f"b{number}" for number in range(6)}

    async def check(world: World) -> None:
        await put_racks(world, {name: f"/r{name}" for name in hosts})
        settings = PlacementSettings(racks_node="/racks", local_rack="/rb3")
        async with placed(world, settings, hosts) as (placing, _):
            for _ in range(10):
                assert (await placing.new_ensemble(THREE, {}))[0] == "b3"

    in_world(check)


def test_a_map_that_is_none_is_told_at_once() -> None:
    async def check(world: World) -> None:
        await world.cluster.store.create("/racks", b"not json")
        with pytest.raises(DamagedMetadata):
            async with placed(world, PlacementSettings(racks_node="/racks"), {}):
                pass
        with pytest.raises(InvalidArgument):
            async with placed(world, PlacementSettings(racks_file="/nowhere"), {}):
                pass

    in_world(check)


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "zone-aware"},
        {"racks_file": "/a", "racks_node": "/b"},
        {"local_rack": "no-slash"},
        {"min_racks_per_write_quorum": 0},
        {"policy": "region-aware", "min_regions_for_durability": 0},
        {"space_interval_s": 0.0},
        {"space_retry_s": float("nan")},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        PlacementSettings(**wrong)


# --- Against real bookies

Check = Callable[[Simulation, LedgerClient, list[SimBookie]], Awaitable[None]]


def on_cluster(check: Check, placement: Any, *, bookies: int, seed: int = 1) -> None:
    async def main(sim: Simulation) -> None:
        async with sim_cluster(sim) as cluster:
            started = [SimBookie(sim, f"b{number}", cluster) for number in range(bookies)]
            for bookie in started:
                await bookie.start()
            runtime = sim.host("client").runtime
            async with open_ledgers(cluster.uri.text, placement=placement, runtime=runtime) as ledgers:
                await check(sim, ledgers, started)
            for bookie in started:
                if bookie.is_running:
                    await bookie.stop()

    simulate(seed, main, time_limit_s=200_000)


@dataclass
class Remembering:
    """A policy of a user's own: random, and it remembers what it was shown."""

    seen: list[tuple[str, dict[str, bytes]]] = field(default_factory=list)
    policy: RandomPlacement = field(default_factory=RandomPlacement)

    def new_ensemble(
        self,
        view: BookieView,
        quorum: Quorum,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> tuple[BookieId, ...]:
        self.seen.append(("new", dict(custom)))
        return self.policy.new_ensemble(view, quorum, rng, exclude=exclude)

    def replace(
        self,
        view: BookieView,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        index: int,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> BookieId:
        self.seen.append(("replace", dict(custom)))
        return self.policy.replace(view, quorum, ensemble, index, rng, exclude=exclude)

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        return Adherence.MEETS_STRICT


def test_a_policy_of_ones_own_sees_the_ledgers_metadata_at_every_choice() -> None:
    policy, custom = Remembering(), {"application": b"orders"}

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(custom=custom) as ledger:
            await ledger.append(b"first")
            failing = next(each for each in bookies if each.host.name in ledger.metadata.metadata.fragments[0].bookies)
            await failing.crash()
            for _ in range(5):
                await ledger.append(b"more")
            await ledger.flush()
        assert len(ledger.metadata.metadata.fragments) == 2

    on_cluster(check, policy, bookies=4)
    assert [what for what, _ in policy.seen][:2] == ["new", "replace"]
    assert all(shown == custom for _, shown in policy.seen)


def test_a_smaller_ensemble_is_taken_where_bookies_are_few_and_the_metadata_says_so() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        async with ledgers.create(ensemble=6, write_quorum=2, ack_quorum=2) as ledger:
            await ledger.append_many([b"entry"] * 10)
        metadata = (await ledgers.ledgers_metadata.read(ledger.id)).metadata
        assert metadata.quorum == Quorum(3, 2, 2)
        async with ledgers.open(ledger.id) as reader:
            assert len([entry async for entry in reader.read()]) == 10
        with pytest.raises(NotEnoughBookies):
            async with ledgers.create(ensemble=6, write_quorum=4, ack_quorum=2):
                pass

    async def check_exact(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        with pytest.raises(NotEnoughBookies):
            async with ledgers.create(ensemble=6, write_quorum=2, ack_quorum=2):
                pass

    on_cluster(check, PlacementSettings(opportunistic_striping=True), bookies=3)
    on_cluster(check_exact, PlacementSettings(), bookies=3)


def test_bookies_with_more_room_get_more_ledgers() -> None:
    """One of six bookies has a thirtieth of the room of the others. By chance alone it would get half the ledgers."""

    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        chosen = await choices(ledgers)
        assert chosen["b0"] < 15
        assert all(chosen[f"b{number}"] > 30 for number in range(1, 6))

    on_cluster(prepared(check), PlacementSettings(weighted=True), bookies=6)
    on_cluster(prepared(check), PlacementSettings("random", weighted=True), bookies=6)

    async def check_unweighted(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        assert (await choices(ledgers))["b0"] > 30

    on_cluster(prepared(check_unweighted), PlacementSettings("random"), bookies=6)


def test_room_is_asked_for_at_intervals_and_of_new_bookies_at_once() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        survey = ledgers._placing._survey
        await choices(ledgers, times=1)
        assert survey.free_bytes.keys() == ledgers.pool.writable
        before = dict(survey.free_bytes)
        bookies[0].host.disk.limit_free_bytes(10_000_000)
        await ledgers.runtime.clock.sleep(290.0)
        assert survey.free_bytes == before
        await ledgers.runtime.clock.sleep(20.0)
        assert survey.free_bytes[BookieId("b0")] < before[BookieId("b0")]
        await bookies[1].stop()
        await ledgers.runtime.clock.sleep(1.0)
        assert BookieId("b1") not in survey.free_bytes
        await bookies[1].start()
        await ledgers.runtime.clock.sleep(1.0)
        assert BookieId("b1") in survey.free_bytes

    assert PlacementSettings().space_interval_s == 24 * 3600
    on_cluster(check, PlacementSettings(weighted=True, space_interval_s=300.0), bookies=4)


def test_a_bookie_that_does_not_tell_is_asked_again_and_holds_nobody_up_for_long() -> None:
    async def check(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        survey = ledgers._placing._survey
        sim.network.partition("client", "b0")
        began_s = sim.loop.time()
        assert (await choices(ledgers, times=1))["b0"] == 0
        assert sim.loop.time() - began_s < 12.0
        assert BookieId("b0") not in survey.free_bytes
        sim.network.heal()
        await ledgers.runtime.clock.sleep(80.0)
        assert BookieId("b0") in survey.free_bytes

    on_cluster(check, PlacementSettings(weighted=True), bookies=4)


def prepared(check: Check) -> Check:
    """The first bookie has little room."""

    async def run(sim: Simulation, ledgers: LedgerClient, bookies: list[SimBookie]) -> None:
        for number, bookie in enumerate(bookies):
            bookie.host.disk.limit_free_bytes(1_000_000 if number == 0 else 30_000_000)
        await ledgers.runtime.clock.sleep(5.0)  # Its own look at the disk comes every few seconds.
        await check(sim, ledgers, bookies)

    return run


async def choices(ledgers: LedgerClient, times: int = 100) -> Counter[str]:
    found: Counter[str] = Counter()
    for _ in range(times):
        async with ledgers.create() as ledger:
            found.update(ledger.metadata.metadata.fragments[0].bookies)
    return found
