"""What is done about a cookie that does not match: restored from another copy of itself, or not at all."""

from dataclasses import replace

import pytest

from quire.bookie.cookie_repair import Case, Evidence, diagnose
from quire.codec.cookie import Cookie
from quire.types import BookieId

DATA, JOURNAL = "/disk/data", "/disk/journal"
COOKIE = Cookie(BookieId("b1"), (JOURNAL,), (DATA,), instance_id="cluster-1")
MOVED = replace(COOKIE, journal_dirs=("/old/journal",), ledger_dirs=("/old/data",))
OTHER = replace(COOKIE, bookie_id=BookieId("b2"))
NOTHING: frozenset[str] = frozenset()
BOTH = frozenset({DATA, JOURNAL})


def evidence(
    stored: Cookie | None, data: Cookie | None, journal: Cookie | None, empty: frozenset[str] = NOTHING
) -> Evidence:
    return Evidence(COOKIE, stored, {DATA: data, JOURNAL: journal}, empty)


@pytest.mark.parametrize(
    ("found", "case"),
    [
        (evidence(COOKIE, COOKIE, COOKIE), Case.MATCHES),
        (evidence(None, None, None, BOTH), Case.FIRST_START),
        (evidence(None, COOKIE, COOKIE), Case.NOT_STORED),
        (evidence(COOKIE, None, COOKIE), Case.NOT_IN_FOLDER),
        (evidence(COOKIE, COOKIE, None), Case.NOT_IN_FOLDER),
        (evidence(MOVED, MOVED, MOVED), Case.MOVED),
        (evidence(COOKIE, None, None, BOTH), Case.EMPTY),
        (evidence(COOKIE, None, COOKIE, frozenset({DATA})), Case.EMPTY),
        (evidence(None, COOKIE, COOKIE, BOTH), Case.EMPTY),
        (evidence(COOKIE, OTHER, COOKIE), Case.FOREIGN),
        (evidence(None, OTHER, OTHER), Case.FOREIGN),
        (evidence(replace(COOKIE, instance_id="cluster-2"), COOKIE, COOKIE), Case.FOREIGN),
        (evidence(None, None, None), Case.FOREIGN),
        (evidence(None, MOVED, MOVED), Case.FOREIGN),
        (evidence(MOVED, MOVED, MOVED, frozenset({DATA})), Case.FOREIGN),
        (evidence(MOVED, MOVED, COOKIE), Case.FOREIGN),
    ],
)
def test_each_case_is_told_from_the_others(found: Evidence, case: Case) -> None:
    diagnosis = diagnose(found)
    assert diagnosis.case is case
    assert (diagnosis.repair is not None) is (case in (Case.NOT_STORED, Case.NOT_IN_FOLDER, Case.MOVED))


def test_an_empty_disk_never_gets_a_cookie() -> None:
    """Whatever the other copies say."""
    for stored in (None, COOKIE, MOVED, OTHER):
        for journal in (None, COOKIE, MOVED):
            assert diagnose(evidence(stored, None, journal, BOTH)).repair is None
            assert diagnose(evidence(stored, None, journal, frozenset({DATA}))).repair is None


def test_an_empty_disk_leads_to_decommissioning() -> None:
    assert "quire bookie decommission b1" in diagnose(evidence(COOKIE, None, None, BOTH)).advice
