"""What a bookie tells of its last hours: changes of what it takes, and passes that brought something."""

from quire.bookie.compaction import GarbageCounters
from quire.bookie.history import STEPS_MAX, History
from quire.bookie.metrics import BookieMetrics
from quire.protocol.space import SpaceMode
from quire.testing import Simulation, simulate


def test_steps_are_told_in_order_and_a_pass_without_effect_is_not() -> None:
    async def main(sim: Simulation) -> None:
        history = History(sim.host("a").runtime.clock)
        counters = GarbageCounters()
        history.on_mode(SpaceMode.READ_ONLY, ("10 bytes are free", "the reserve is used"))
        history.on_pass(counters)
        counters.deleted_ledgers, counters.compacted_logs, counters.reclaimed_bytes = 3, 1, 2 << 20
        history.on_pass(counters)
        history.on_pass(counters)
        history.on_mode(SpaceMode.WRITABLE, ())
        assert [step.what for step in history.steps] == [
            "takes no more entries but those of recovery: 10 bytes are free; the reserve is used",
            "garbage collection: 3 ledgers forgotten, 1 entry logs compacted, 2 MiB reclaimed",
            "takes entries again",
        ]
        for number in range(2 * STEPS_MAX):
            history.note(str(number))
        assert len(history.steps) == STEPS_MAX
        assert history.steps[-1].what == str(2 * STEPS_MAX - 1)

    simulate(1, main)


def test_a_slow_request_is_put_down_to_the_stage_that_took_most_of_it() -> None:
    stages = BookieMetrics(lambda: 0.0, journal_count=1).stages
    assert stages.stage_of(2.0) == "queue"
    stages.last_s |= {"index": 0.1, "read": 1.8}
    assert stages.stage_of(2.0) == "read"
    assert stages.stage_of(9.0) == "queue"
