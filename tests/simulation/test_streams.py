"""Streams while writers, readers, bookies, disks, the network and the metadata fail: they keep their promises.

The real client and real bookies run in one thread; see `tests/simulation/streams` for what happens to them and
`tests/support/streams/proof.py` for what is proven afterwards. `QUIRE_SEEDS` says how many runs there are in all.
"""

import os
from collections import Counter

import pytest

from quire.testing import Simulation
from tests.simulation.streams.run import STEP_LIMIT, TIME_LIMIT_S, run
from tests.simulation.streams.workloads import WORKLOADS, seeds_of

SEEDS = int(os.environ.get("QUIRE_SEEDS") or (10_000 if os.environ.get("QUIRE_TEST_LONG") else 300))
CHUNK = 10 if SEEDS < 2000 else 50  # Seeds for each test: few enough to share the work, enough to be worth a test.


def chunks() -> list[tuple[str, range]]:
    return [(name, seeds[first : first + CHUNK]) for name, seeds in seeds_of(SEEDS).items() for first in seeds[::CHUNK]]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "seeds"), chunks(), ids=lambda each: each if isinstance(each, str) else str(each[0]))
def test_streams_keep_their_promises(name: str, seeds: range) -> None:
    failures: dict[int, Exception] = {}
    for seed in seeds:
        try:
            run(seed, WORKLOADS[name])
        except Exception as error:
            error.add_note(f"again: python -m tests.simulation.streams {name} {seed}")
            failures[seed] = error
    if failures:
        print(f"seeds of {name} that fail: {list(failures)}")
        raise next(iter(failures.values()))


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("truncation", 11),  # A writer that was being closed began another segment, and left it behind.
        ("expiry", 27),
        ("rolling", 1087),
        ("tailing", 41),  # A block that was cancelled while its writer closed did not wait for that.
        ("failover", 5058),  # Timers of a writer that was cancelled while it closed rang later.
        ("purging", 34),  # A ledger was closed while a txid was looked for: its last entries were passed over.
        ("lost_answers", 1029),  # As a closing writer began a segment, its ledger was closed by two at once.
    ],
)
def test_a_seed_that_found_a_bug(name: str, seed: int) -> None:
    run(seed, WORKLOADS[name])


@pytest.mark.timeout(300)
def test_the_workloads_are_worth_something() -> None:
    """What should happen does: without it the other tests would prove little."""
    events: Counter[str] = Counter()
    for name in ("everything", "lost_answers", "truncation"):
        for seed in range(8):
            world = run(seed, WORKLOADS[name])
            events += world.events
            events.update(world.changes.met)
            events["acknowledged"] += sum(len(call.dlsns or ()) for call in world.history.calls)
            events["outcome unknown"] += sum(call.dlsns is None and not call.refused for call in world.history.calls)
            events["refused"] += sum(call.refused != "" for call in world.history.calls)
            events["segments"] += len({change.lssn for change in world.history.changes})
    often = {"acknowledged": 1000, "segments": 100, "shown": 2000, "readings": 100, "owned": 60}
    some = {"outcome unknown": 20, "refused": 20, "segments truncated": 40, "segments purged": 10, "commits": 50}
    few = {"answer lost": 10, "lost": 5, "late": 5, "late and done": 2, "late and refused": 2, "client crashed": 10}
    errors = {"append: WriterFenced": 20, "append: HandleClosed": 5, "reader: PositionTruncated": 2, "resumed": 20}
    missing = {kind: events[kind] for kind, count in (often | some | few | errors).items() if events[kind] < count}
    assert missing == {}, dict(events)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_says_everything(name: str) -> None:
    digests = set()
    for _ in range(2):
        simulation = Simulation(3, time_limit_s=TIME_LIMIT_S, step_limit=STEP_LIMIT)
        simulation.run(WORKLOADS[name])
        digests.add(simulation.trace_digest())
    assert len(digests) == 1
