"""Every simulated workload keeps its promises, whatever fails.

Real clients, bookies and proxies run in one thread, from one seed. The folder of each area has what happens to them and
what is proven afterwards; `harness.py` says how many seeds there are. A failure tells how to repeat it.
"""

from collections import Counter
from itertools import product
from typing import Any

import pytest

from tests.simulation.catalog import WORKLOADS
from tests.simulation.harness import run, run_all, trace_digest
from tests.support.tiers import one_in

CHUNK_MIN, CHUNKS_MAX = 3, 20  # Of seeds for each test: few enough to share the work, enough to be worth a test.


def chunks() -> list[Any]:
    """All seeds. Chunks that begin within the first twentieth are always run, the others are extended."""
    made = []
    for name, workload in WORKLOADS.items():
        count = len(workload.seeds)
        size = max(CHUNK_MIN, count // CHUNKS_MAX)
        for first in workload.seeds[::size]:
            marks = [pytest.mark.extended] if first * 20 >= count else []
            made.append(pytest.param(name, workload.seeds[first : first + size], id=f"{name}-{first}", marks=marks))
    return made


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seeds"), chunks())
def test_promises_are_kept(name: str, seeds: range) -> None:
    run_all(WORKLOADS[name], seeds)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("ledgers/tailing", 13),  # A reader was shown entries that the writer then sealed the ledger before.
        ("ledgers/everything", 57),  # A recovery took the same two unreachable bookies in turn, without end.
        ("ledgers/power", 1185),
        ("ledgers/tailing", 1056),
        ("ledgers/late_change", 1020),  # So did a writer, a thousand times within a moment, and gave up.
        ("ledgers/late_change", 1175),
        ("streams/truncation", 11),  # A writer that was being closed began another segment, and left it behind.
        ("streams/expiry", 27),
        ("streams/rolling", 1087),
        ("streams/tailing", 41),  # A block that was cancelled while its writer closed did not wait for that.
        ("streams/failover", 5058),  # Timers of a writer that was cancelled while it closed rang later.
        ("streams/purging", 34),  # A ledger was closed while a txid was looked for: its last entries were passed over.
        ("streams/lost_answers", 1029),  # As a closing writer began a segment, its ledger was closed by two at once.
        ("cold/lost_answers", 5),  # A ledger that was being filled was taken for a leftover, and the restore failed.
        ("cold/truncation", 26),  # One dropped a segment while another one restored that before it: a gap in the hot.
        ("cold/truncation", 274),  # A purge that was stopped had deleted a file, and nothing could be restored.
        ("serving/everything", 159),  # A proxy that was shut out of an idle stream, and asked to seal it, kept it.
        ("serving/balance", 118),  # A proxy was killed while it gave a stream up; and two lives of it were listed.
    ],
)
def test_a_seed_that_found_a_bug(name: str, seed: int) -> None:
    run(WORKLOADS[name], seed)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "seed"), one_in(12, [*product(WORKLOADS, [3]), ("serving/everything", 4), ("serving/everything", 5)])
)
def test_a_seed_says_everything(name: str, seed: int) -> None:
    assert trace_digest(WORKLOADS[name], seed) == trace_digest(WORKLOADS[name], seed)


@pytest.mark.extended
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("names", "seeds", "wanted"),
    [
        (
            ["ledgers/everything"],
            30,
            {"acknowledged": 2000, "tailed": 500, "recovered": 20, "fenced": 10, "bookie crashed": 20, "stall": 5}
            | {"crash": 3, "reset": 3, "partition": 3, "heal": 3, "lose_answers": 3, "slow_sync": 3}
            | {"client crashed": 3, "fragment moved": 3, "collect": 3}
            | {"wiped": 1, "damage": 1, "blackout": 1, "failing_sync": 1, "fill": 1, "expire": 1},
        ),
        (
            ["replication/everything"],
            10,
            {"acknowledged": 500, "tailed": 100, "closed": 10, "metadata repaired": 20, "wiped": 5, "damaged": 2}
            | {"crash_repairs": 3, "deleted": 3, "bookie crashed": 15, "expire": 1, "lose_answers": 1, "fill": 1},
        ),
        (
            ["replication/operations"],
            40,  # One in ten exchanges a disk, so that it may take some until there are two.
            {"acknowledged": 500, "read at random": 50, "moves made": 20, "plans carried out": 10, "left": 4}
            | {"moved ledgers dropped": 20, "copies counted": 500, "crash_operator": 5, "drained": 3, "wiped": 2}
            | {"changed by autorecovery": 4, "changed by rebalancer": 20, "decommissions": 4},
        ),
        (
            ["streams/everything", "streams/lost_answers", "streams/truncation"],
            8,
            {"acknowledged": 1000, "segments": 100, "shown": 2000, "readings": 100, "owned": 60}
            | {"outcome unknown": 20, "refused": 20, "segments truncated": 40, "segments purged": 10, "commits": 50}
            | {"answer lost": 10, "lost": 5, "late": 5, "late and done": 2, "late and void": 2}
            | {"client crashed": 10, "append: WriterFenced": 20, "append: HandleClosed": 5, "resumed": 20}
            | {"reader: PositionTruncated": 2},
        ),
        (
            ["cold/rolling", "cold/tailing", "cold/truncation", "cold/lost_answers"],
            3,
            {"archived": 20, "moved to cold": 50, "moved to hot": 10, "cold at the end": 40, "shown": 600},
        ),
        (
            ["staging/everything", "staging/inline", "staging/doubles", "staging/lost_answers", "staging/swept"],
            3,
            {"new": 50, "recognised": 20, "published": 25, "swept": 40, "inline": 40, "client crashed": 15}
            | {"answer lost": 10, "late and done": 3, "driver: StagedGone": 10},
        ),
    ],
    ids=["ledgers", "replication", "operations", "streams", "cold", "staging"],
)
def test_the_workloads_are_worth_something(names: list[str], seeds: int, wanted: dict[str, int]) -> None:
    """What should happen does, within so many seeds: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for seed, name in product(range(seeds), names):
        events += run(WORKLOADS[name], seed).tally()
        if events >= Counter(wanted):
            return
    missing = {kind: events[kind] for kind, count in wanted.items() if events[kind] < count}
    pytest.fail(f"too few of {missing}: {dict(events)}")


@pytest.mark.extended
@pytest.mark.timeout(300)
def test_every_fault_of_the_serving_tier_happens() -> None:
    events: Counter[str] = Counter()
    planned: set[str] = set()
    for workload in WORKLOADS.values():
        if workload.area != "serving" or not workload.seeds:
            continue
        for seed in range(2000, 2012):
            lived = run(workload, seed)
            events += lived.tally()
            planned |= lived.plan.faults.keys()
            if seed >= 2002 and all(events[fault] for fault in lived.plan.faults):
                break  # Chance decides which faults there are: a few more seeds, if one has not been drawn.
    assert {fault for fault in planned if not events[fault]} == set()
    wanted = {"acknowledged": 800, "shown": 2000, "reader reopened": 200, "segments": 100, "full": 20, "confirmed": 20}
    wanted |= {"append: AppendOutcomeUnknown": 10, "append: StreamUnavailable": 5, "hidden": 2, "ordered": 10}
    wanted |= {"during a move": 3}
    assert {kind: events[kind] for kind, count in wanted.items() if events[kind] < count} == {}, dict(events)
