"""What is wrong with a cluster, and what may be done about it: each rule with what it must not be mistaken for."""

from dataclasses import replace

import pytest

from quire.protocol.consistency import (
    LEAKED_AFTER_MS,
    BadCopies,
    LedgerFact,
    Look,
    SegmentFact,
    StagedFact,
    StreamFact,
    judge,
)
from quire.protocol.findings import Finding, Repair, Severity
from quire.types import NO_ENTRY, BookieId, EntryId, LedgerId

NOW_MS = 10_000_000_000
STAGED_TTL_MS = 86_400_000
OLD_MS = NOW_MS - 2 * LEAKED_AFTER_MS


def ledger(number: int, *, entries: int = 10, is_closed: bool = True, custom: bool = False) -> LedgerFact:
    return LedgerFact(LedgerId(number), is_closed, EntryId(entries - 1), entries * 100, OLD_MS, custom)


def segment(lssn: int, *, of: int, is_completed: bool = True, last: int = 9) -> SegmentFact:
    return SegmentFact(f"logrecs_{lssn:018d}", lssn, LedgerId(of), is_completed, EntryId(last))


def found(
    ledgers: list[LedgerFact],
    *streams: StreamFact,
    looks: dict[int, Look] | None = None,
    exclusive: bool = True,
    damaged: dict[LedgerId, str] | None = None,
) -> list[Finding]:
    return judge(
        {each.ledger_id: each for each in ledgers},
        streams,
        {LedgerId(number): look for number, look in (looks or {}).items()},
        damaged=damaged or {},
        now_ms=NOW_MS,
        exclusive=exclusive,
        staged_ttl_ms=STAGED_TTL_MS,
    )


def kinds(findings: list[Finding]) -> list[tuple[str, Repair | None]]:
    return [(each.kind, each.repair) for each in findings]


def stream(*segments: SegmentFact, allocated: int | None = None, owner: str | None = None) -> StreamFact:
    return StreamFact("ns/orders", segments, None if allocated is None else LedgerId(allocated), owner)


def test_a_cluster_that_is_in_order_has_no_findings() -> None:
    looks = {1: Look(length=1000), 2: Look()}
    ledgers = [ledger(1), ledger(2, is_closed=False)]
    assert found(ledgers, stream(segment(1, of=1), segment(2, of=2, is_completed=False)), looks=looks) == []


# --- Leaked ledgers


def test_a_ledger_that_no_stream_names_is_leaked_and_deleted_only_if_it_is_empty() -> None:
    findings = found([ledger(1), ledger(2), ledger(3, entries=0)], stream(segment(1, of=1)))
    assert kinds(findings) == [("leaked ledger", None), ("leaked ledger", Repair.DELETE_EMPTY)]
    assert "quire ledger delete 2" in findings[0].advice


@pytest.mark.parametrize(
    "fact",
    [
        ledger(2, custom=True),
        replace(ledger(2), created_ms=NOW_MS - LEAKED_AFTER_MS // 2),
        replace(ledger(2), created_ms=None),
    ],
    ids=["of another application", "just made", "of unknown age"],
)
def test_what_may_be_somebody_elses_is_never_called_leaked(fact: LedgerFact) -> None:
    assert found([ledger(1), fact], stream(segment(1, of=1))) == []


def test_nothing_is_called_leaked_unless_all_ledgers_are_said_to_be_of_these_streams() -> None:
    assert found([ledger(1), ledger(2)], stream(segment(1, of=1)), exclusive=False) == []


def test_an_empty_ledger_that_is_not_closed_is_not_deleted() -> None:
    assert kinds(found([ledger(2, entries=0, is_closed=False)])) == [("leaked ledger", None)]


@pytest.mark.parametrize(
    "broken",
    [
        stream(segment(1, of=1), SegmentFact("logrecs_2", None, problem="it does not parse")),
        replace(stream(segment(1, of=1)), problems=("/ns/orders/<default>/cold/x: it is no JSON",)),
    ],
)
def test_nothing_is_called_leaked_while_something_that_may_name_it_cannot_be_read(broken: StreamFact) -> None:
    findings = found([ledger(1), ledger(2, entries=0)], broken, replace(stream(), name="ns/other"))
    assert kinds(findings) == [("damaged metadata", None)]


def test_what_is_allocated_staged_or_left_by_an_archive_is_not_leaked() -> None:
    young = StagedFact(LedgerId(2), NOW_MS - 1000)
    all_of_it = replace(stream(allocated=1, owner="me"), staged=(young,), also={LedgerId(3): "cold/x"})
    just_made = replace(ledger(3), created_ms=NOW_MS - LEAKED_AFTER_MS + 1)
    assert found([ledger(1, entries=0), ledger(2), just_made], all_of_it) == []


def test_a_ledger_that_an_archive_left_is_found_when_it_is_old() -> None:
    (finding,) = found([ledger(3)], replace(stream(), also={LedgerId(3): "cold/x"}))
    assert (finding.kind, finding.ledger_id, finding.repair) == ("left-over ledger", 3, None)
    assert "cold/x" in finding.problem


def test_staged_ledgers_are_swept_when_they_are_old_and_left_alone_before() -> None:
    """Also while they do not exist: the node of a staged ledger comes first."""
    ages_ms = (STAGED_TTL_MS, 3 * STAGED_TTL_MS, STAGED_TTL_MS - 1)
    one = replace(stream(), staged=tuple(StagedFact(LedgerId(n), NOW_MS - age) for n, age in enumerate(ages_ms)))
    (finding,) = found([ledger(0)], one, exclusive=False)
    assert (finding.kind, finding.severity) == ("old staged ledger", Severity.UNTIDY)
    assert (finding.repair, finding.stream) == (Repair.SWEEP_STAGED, one.name)
    assert finding.problem.startswith("2 staged ledgers are up to 72 hours old")
    assert found([], replace(one, staged=one.staged[2:]), exclusive=False) == []


def test_a_node_of_an_archive_that_names_a_ledger_which_is_gone_is_left_over() -> None:
    findings = found([], replace(stream(), also={LedgerId(3): "/ns/orders/<default>/cold/x"}))
    assert kinds(findings) == [("left-over node", None)]


# --- Bookies


def test_missing_copies_are_copied_as_long_as_one_can_be_read() -> None:
    bad = (BadCopies(EntryId(0), BookieId("b1"), "it is not registered"),)
    (finding,) = found([ledger(1)], looks={1: Look(bad)}, exclusive=False)
    assert (finding.severity, finding.repair, finding.bookies) == (Severity.AT_RISK, Repair.COPY, ("b1",))
    assert "b1, from entry 0 on: it is not registered" in finding.problem
    lost, at_risk = found([ledger(1)], looks={1: Look(bad, "nobody has entry 3")}, exclusive=False)
    assert (lost.severity, lost.repair) == (Severity.LOST, None)
    assert at_risk.repair is None, "there is nothing to copy from"


def test_a_ledger_that_is_being_written_is_left_to_its_writer() -> None:
    bad = (BadCopies(EntryId(0), BookieId("b1"), "no such entry"),)
    (finding,) = found([ledger(1, is_closed=False)], looks={1: Look(bad)}, exclusive=False)
    assert finding.repair is None
    assert "quire ledger recover 1" in finding.advice


def test_a_length_that_the_last_entry_does_not_bear_out_is_told() -> None:
    (finding,) = found([ledger(1)], looks={1: Look(length=999)}, exclusive=False)
    assert (finding.kind, finding.repair) == ("wrong length", None)


def test_damaged_metadata_is_told_and_its_ledger_counts_as_there() -> None:
    findings = found([], stream(segment(1, of=5)), damaged={LedgerId(5): "it does not parse"})
    assert kinds(findings) == [("damaged metadata", None)]


# --- Streams


def test_a_segment_without_its_ledger_is_lost_unless_it_was_being_purged() -> None:
    (finding,) = found([], stream(segment(1, of=7)))
    assert (finding.kind, finding.severity) == ("unreadable segment", Severity.LOST)
    (finding,) = found([], stream(replace(segment(1, of=7), is_truncated=True)))
    assert (finding.kind, finding.severity) == ("half purged segment", Severity.UNTIDY)
    assert "quire stream purge orders" in finding.advice


def test_a_segment_that_is_longer_than_its_ledger_is_lost() -> None:
    assert kinds(found([ledger(1, entries=5)], stream(segment(1, of=1)))) == [("unreadable segment", None)]
    empty = segment(1, of=1, last=NO_ENTRY)
    assert found([ledger(1, entries=0)], stream(empty)) == []


def test_a_completed_segment_has_a_closed_ledger() -> None:
    assert kinds(found([ledger(1, is_closed=False)], stream(segment(1, of=1)))) == [("open ledger", None)]


def test_gaps_and_doubles_in_a_chain_are_told_and_a_purged_beginning_is_not() -> None:
    assert found([ledger(1), ledger(2)], stream(segment(4, of=1), segment(5, of=2))) == []
    (gap,) = found([ledger(1), ledger(2)], stream(segment(4, of=1), segment(7, of=2)))
    assert gap.problem == "segments 5 to 6 lack"
    (double,) = found([ledger(1), ledger(2)], stream(segment(4, of=1), segment(4, of=2)))
    assert double.problem == "segment 4 is there twice"


def test_an_allocated_ledger_is_in_order_while_somebody_writes() -> None:
    assert found([], stream(allocated=9, owner="host/1")) == []


def test_an_allocation_of_nobody_is_cleared_only_if_its_ledger_is_gone() -> None:
    assert kinds(found([], stream(allocated=9))) == [("allocation left over", Repair.CLEAR_ALLOCATION)]
    assert kinds(found([ledger(9, entries=0)], stream(allocated=9))) == [("allocation left over", None)]
    (finding,) = found([ledger(9, entries=3)], stream(allocated=9))
    assert (finding.severity, finding.repair) == (Severity.AT_RISK, None), "it has entries that no segment has"


def test_nodes_that_cannot_be_read_are_told_with_their_place() -> None:
    broken = SegmentFact("logrecs_1", None, problem="segment: version 77 does not exist")
    findings = found([], replace(stream(broken), problems=("/ns/orders/<default>/cold/x: it is no JSON",)))
    assert [each.kind for each in findings] == ["damaged metadata"] * 2


def test_the_worst_comes_first() -> None:
    looks = {1: Look((BadCopies(EntryId(0), BookieId("b1"), "gone"),))}
    findings = found([ledger(1), ledger(2)], stream(segment(1, of=1), segment(2, of=3)), looks=looks)
    assert [each.severity for each in findings] == [Severity.LOST, Severity.AT_RISK, Severity.UNTIDY]
