"""When entry logs are compacted, and what a person is told of those that are not."""

from quire.protocol.compaction import Compaction, CompactionRule, CompactionSchedule, emptiness

MINOR, MAJOR = Compaction.MINOR, Compaction.MAJOR
WALL_MS = 1_600_000_000_000


def schedule(*, minor: float = 0.2, major: float = 0.8) -> CompactionSchedule:
    return CompactionSchedule({MINOR: CompactionRule(minor, 10), MAJOR: CompactionRule(major, 100)}, now_s=0)


def reason(rules: CompactionSchedule, ratio: float | None, *, now_s: float = 0) -> str:
    return rules.reason(ratio, now_s=now_s, wall_ms=WALL_MS)


def test_each_kind_is_due_after_its_interval_and_the_major_one_does_the_work_of_both() -> None:
    rules = schedule()
    assert rules.due(9) is None
    assert rules.due(10) is MINOR
    rules.on_done(MINOR, 12)
    assert rules.due(21) is None
    assert rules.due(100) is MAJOR
    rules.on_done(MAJOR, 100)
    assert rules.due(109) is None
    assert rules.due(110) is MINOR


def test_what_somebody_asks_for_is_done_at_once_unless_it_is_suspended() -> None:
    rules = schedule()
    assert rules.due(0, forced={MINOR}) is MINOR
    assert rules.due(0, forced={MINOR, MAJOR}) is MAJOR
    rules.suspended = {MAJOR}
    assert rules.due(0, forced={MINOR, MAJOR}) is MINOR
    rules.suspended = {MINOR, MAJOR}
    assert rules.due(1000, forced={MINOR, MAJOR}) is None


def test_a_ratio_of_zero_means_never() -> None:
    rules = schedule(minor=0)
    assert rules.due(50, forced={MINOR}) is None
    assert not rules.covers(MINOR, 0.0)
    assert rules.covers(MAJOR, 0.1)


def test_a_log_of_which_nothing_is_known_is_for_the_major_compaction() -> None:
    assert not schedule().covers(MINOR, None)
    assert schedule().covers(MAJOR, None)
    assert emptiness(None, 100) > emptiness(99, 100) > emptiness(1, 100)


def test_whoever_stays_is_told_why() -> None:
    rules = schedule()
    assert reason(rules, 0.83) == "live ratio 0.83 is above 0.80"
    assert reason(rules, 0.1, now_s=4) == "live ratio 0.10: minor compaction is due at 2020-09-13T12:26:46+00:00"
    assert reason(rules, 0.5) == "live ratio 0.50: major compaction is due at 2020-09-13T12:28:20+00:00"
    assert reason(rules, None).startswith("live ratio unknown: major compaction is due at")
    rules.suspended = {MAJOR}
    assert reason(rules, 0.5) == "compaction suspended"
    assert reason(rules, 0.1).startswith("live ratio 0.10: minor compaction is due")
    rules.suspended = {MAJOR, MINOR}
    assert reason(rules, 0.1) == "compaction suspended"
    assert reason(rules, 0.9) == "live ratio 0.90 is above 0.80"
