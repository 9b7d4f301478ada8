"""Copies that cannot be used: each is counted, and told once for each ledger and bookie, and again much later."""

import logging

import pytest

from quire.errors import BookieUnavailable, DamagedEntry
from quire.ledger.damage import AGAIN_S, BAD_COPY, PAIRS_MAX, DamagedCopies
from quire.telemetry.metrics import Counter
from quire.types import BookieId, EntryId, LedgerId

ERROR = DamagedEntry("entry 3 of ledger 7 does not match its digest")


class Damage:
    """What a client meets, and what is told of it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, logger="quire")
        self._caplog = caplog
        self.now_s = 100.0
        self.counter = Counter()
        self._copies = DamagedCopies(self.counter, lambda: self.now_s)

    def meet(self, ledger: int, entry: int, bookie: str, **part_of: object) -> list[dict[str, object]]:
        """A copy; returns the events about it."""
        self._caplog.clear()
        self._copies.on_copy(LedgerId(ledger), EntryId(entry), BookieId(bookie), ERROR, part_of)
        assert {getattr(record, "event", "") for record in self._caplog.records} <= {"ledger.damaged_copy"}
        return [record.facts for record in self._caplog.records]  # type: ignore[attr-defined]


@pytest.fixture
def damage(caplog: pytest.LogCaptureFixture) -> Damage:
    return Damage(caplog)


def test_a_bad_copy_is_told_with_its_place_and_what_is_wrong(damage: Damage) -> None:
    assert damage.meet(7, 3, "b1") == [{"ledger_id": 7, "entry_id": 3, "bookie": "b1", "error": str(ERROR)}]
    (facts,) = damage.meet(8, 4, "b1", stream="orders", lssn=2)
    assert (facts["stream"], facts["lssn"], facts["entry_id"]) == ("orders", 2, 4)


def test_a_bad_disk_does_not_fill_the_log(damage: Damage) -> None:
    assert len(damage.meet(7, 0, "b1")) == 1
    for entry in range(1, 1000):
        assert damage.meet(7, entry, "b1") == []
    assert len(damage.meet(7, 0, "b2")) == 1, "another disk"
    assert len(damage.meet(8, 0, "b1")) == 1, "another ledger"
    assert len(damage.meet(7, 0, "b1", stream="orders", lssn=2)) == 1, "where it is in a stream was not told yet"
    assert damage.counter.value == 1003, "all of them count"
    damage.now_s += AGAIN_S - 1
    assert damage.meet(7, 1, "b1") == []
    damage.now_s += 1
    assert len(damage.meet(7, 1, "b1")) == 1, "somebody may look at a newer log"
    assert damage.meet(7, 1, "b1") == []


def test_what_is_remembered_is_bounded(damage: Damage) -> None:
    for ledger in range(PAIRS_MAX):
        assert len(damage.meet(ledger, 0, "b1")) == 1
    assert damage.meet(0, 0, "b1") == []
    assert len(damage.meet(PAIRS_MAX, 0, "b1")) == 1
    assert damage.meet(1, 0, "b1") == []
    assert len(damage.meet(0, 0, "b1")) == 1, "the oldest was forgotten"


def test_a_bookie_that_is_away_has_no_bad_copies() -> None:
    assert not isinstance(BookieUnavailable("it does not answer"), BAD_COPY)
