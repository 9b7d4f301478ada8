"""What is wrong with archived segments and their files: each rule with what it must not be mistaken for."""

from dataclasses import replace

import pytest

from quire.protocol.cold_consistency import (
    DAMAGED,
    MISSING,
    Archive,
    ColdFact,
    ColdLook,
    ColdObject,
    FileProblem,
    archive_of,
)
from quire.protocol.consistency import LedgerFact, SegmentFact, StreamFact, judge
from quire.protocol.findings import Finding, Severity
from quire.types import EntryId, LedgerId

ROOT, NAME = "s3://bucket/log", "ns/orders"


def hot(lssn: int) -> SegmentFact:
    return SegmentFact(f"logrecs_{lssn:018d}", lssn, LedgerId(lssn), True, EntryId(9))


def cold(lssn: int, *, is_hot: bool = False) -> ColdFact:
    return ColdFact(f"logrecs_{lssn:018d}", lssn, ROOT, f"ns/orders/seg-{lssn:012d}/a.parquet", is_hot)


def stream(*segments: SegmentFact | ColdFact) -> StreamFact:
    on_bookies = tuple(each for each in segments if isinstance(each, SegmentFact))
    return StreamFact(NAME, on_bookies, cold=tuple(each for each in segments if isinstance(each, ColdFact)))


def found(*streams: StreamFact, look: ColdLook | None = None, exclusive: bool = False) -> list[Finding]:
    ledgers = {
        each: LedgerFact(each, True, EntryId(9), 1000, None, False) for one in streams for each in one.ledger_ids
    }
    return judge(
        ledgers, streams, {}, damaged={}, now_ms=0, exclusive=exclusive, staged_ttl_ms=1, cold=look or ColdLook()
    )


def with_problem(fact: ColdFact, kind: str) -> ColdLook:
    return ColdLook({fact.key: FileProblem(kind, "it is not as it should be")})


def told(findings: list[Finding]) -> list[tuple[str, Severity]]:
    return [(each.kind, each.severity) for each in findings]


# --- The chain


@pytest.mark.parametrize(
    "segments",
    [
        (cold(1), cold(2), hot(3), hot(4)),
        (cold(5), cold(6)),
        (cold(2), cold(3, is_hot=True), hot(3), cold(4, is_hot=True), hot(4), hot(5)),
        (hot(1), hot(2)),
    ],
    ids=["dropped", "nothing hot", "archived and hot", "nothing cold"],
)
def test_a_chain_across_hot_and_cold_has_no_findings(segments: tuple[SegmentFact | ColdFact, ...]) -> None:
    assert found(stream(*segments), exclusive=True) == []


def test_a_gap_among_cold_segments_is_a_broken_chain() -> None:
    (finding,) = found(stream(cold(1), cold(2), cold(5), hot(6)))
    assert (finding.kind, finding.severity) == ("broken chain", Severity.LOST)
    assert finding.problem == "cold segments 3 to 4 lack"
    (finding,) = found(stream(cold(1), cold(3)))
    assert finding.problem == "cold segment 2 lacks"


@pytest.mark.parametrize(
    ("segments", "cut_off"),
    [
        ((cold(1), cold(2), hot(4)), (1, 2)),
        ((cold(2), cold(3, is_hot=True), hot(4)), (2, 3)),
        ((cold(1), cold(2, is_hot=True)), (1, 2)),
        ((cold(1, is_hot=True), cold(2), hot(3)), (1,)),
    ],
    ids=["not archived and gone", "archived and gone", "all gone", "before what was dropped"],
)
def test_what_somebody_purged_who_knows_nothing_of_cold_storage_cuts_the_archive_off(
    segments: tuple[SegmentFact | ColdFact, ...], cut_off: tuple[int, ...]
) -> None:
    """It counts for nothing then, and its files are told for that only."""
    one = stream(*segments)
    assert archive_of(one.hot_numbers, {each.lssn: each for each in one.cold}).cut_off == cut_off
    look = with_problem(one.cold[0], MISSING)
    (finding,) = found(one, look=look)
    assert (finding.kind, finding.severity) == ("cut-off archive", Severity.AT_RISK)
    assert "quire stream purge orders" in finding.advice


def test_nothing_is_said_of_what_lacks_while_a_node_cannot_be_read() -> None:
    findings = found(replace(stream(cold(1), cold(3), hot(5)), problems=("cold/2: it is no JSON",)))
    assert told(findings) == [("damaged metadata", Severity.LOST)]


def test_the_chain_ends_where_a_segment_says_that_it_is_hot() -> None:
    facts = {1: cold(1), 2: cold(2, is_hot=True), 3: cold(3)}
    assert archive_of({4}, facts) == Archive((3,), cut_off=(1, 2))
    assert archive_of(set(), {}) == Archive(())


# --- Files


@pytest.mark.parametrize("kind", [MISSING, DAMAGED])
def test_a_bad_file_is_lost_unless_bookies_have_its_records(kind: str) -> None:
    only_cold = cold(1)
    assert told(found(stream(only_cold, hot(2)), look=with_problem(only_cold, kind))) == [(kind, Severity.LOST)]
    both = cold(1, is_hot=True)
    (finding,) = found(stream(both, hot(1)), look=with_problem(both, kind))
    assert (finding.kind, finding.severity) == (kind, Severity.AT_RISK)
    assert both.file in finding.problem


def test_a_file_that_a_purge_deleted_is_not_lost() -> None:
    truncated = replace(cold(1), is_truncated=True)
    findings = found(stream(truncated, hot(2)), look=with_problem(truncated, MISSING))
    assert told(findings) == [("half purged segment", Severity.UNTIDY)]
    assert told(found(stream(truncated, hot(2)), look=with_problem(truncated, DAMAGED))) == [(DAMAGED, Severity.LOST)]


def test_a_missing_file_of_a_folder_may_be_on_another_machine() -> None:
    fact = replace(cold(1), root="file:/mnt/archive")
    (finding,) = found(stream(fact), look=with_problem(fact, MISSING))
    assert "on this machine" in finding.advice


def test_a_store_that_cannot_be_asked_is_told_once() -> None:
    look = ColdLook(unreachable={ROOT: "nobody answers"})
    (finding,) = found(stream(cold(1), cold(2), hot(3)), look=look)
    assert (finding.kind, finding.severity) == ("unreachable cold storage", Severity.AT_RISK)
    assert "nobody answers" in finding.problem
    assert "2 in all" in finding.problem


# --- Files of nobody


def leftover(lssn: int, *, of: str = NAME) -> ColdLook:
    return ColdLook(objects=[ColdObject(ROOT, f"{of}/seg-{lssn:012d}/b.parquet", of, lssn)])


@pytest.mark.parametrize(
    "look",
    [leftover(1), leftover(2), leftover(1, of="ns/deleted")],
    ids=["another one was published", "purged", "of a deleted stream"],
)
def test_a_file_that_nobody_can_publish_any_more_is_left_over(look: ColdLook) -> None:
    one = stream(cold(3), hot(4))
    one = replace(one, cold=(replace(cold(1), is_hot=True), *one.cold)) if look.objects[0].lssn == 1 else one
    findings = [each for each in found(one, look=look, exclusive=True) if each.kind == "left-over cold file"]
    assert told(findings) == [("left-over cold file", Severity.UNTIDY)]
    assert look.objects[0].name in findings[0].problem


@pytest.mark.parametrize("lssn", [4, 5], ids=["of a hot segment", "of a segment that is newer than the list"])
def test_a_file_that_may_be_published_is_not_left_over(lssn: int) -> None:
    assert found(stream(cold(3), hot(4)), look=leftover(lssn), exclusive=True) == []


def test_files_that_are_named_or_may_be_somebody_elses_are_not_left_over() -> None:
    fact = cold(3)
    named = ColdLook(objects=[ColdObject(ROOT, fact.file, "ns/renamed", 3)])
    assert found(stream(fact, hot(4)), look=named, exclusive=True) == []
    assert found(stream(fact, hot(4)), look=leftover(1), exclusive=False) == []
