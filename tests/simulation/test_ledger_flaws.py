"""Bugs that ledgers have had, planted again: the net of `test_ledgers` has to find each of them.

Each flaw is patched into the client for one simulation, never into what is shipped. The test says how many seeds it
took.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from quire.errors import InvariantBroken
from quire.ledger import recovery
from quire.testing import simulate
from quire.types import EntryId
from tests.simulation.test_ledgers import live

SEEDS_MAX = 150


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    with patch.object(owner, name, value):
        yield


def one_denial_is_absence() -> Any:
    """A single "no such entry" ends the ledger, though others may have acknowledged it (issue 2 of the list)."""
    return patched(recovery, "absences_needed", lambda quorum: 1)


def stops_at_the_lac() -> Any:
    """Recovery seals at the LAC that bookies know, without looking for what is behind it."""

    async def nothing(self: Any, entry_id: EntryId) -> None:
        return None

    return patched(recovery._Recovery, "_find", nothing)


def writer_closes_at_what_it_sent() -> Any:
    """The writer seals its ledger behind entries that were never acknowledged."""
    from quire.ledger.writer import LedgerWriter

    return patched(LedgerWriter, "last_add_confirmed", property(lambda self: self.last_add_pushed))


FLAWS: list[Callable[[], Any]] = [
    one_denial_is_absence,
    stops_at_the_lac,
    writer_closes_at_what_it_sent,
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("flaw", FLAWS, ids=lambda flaw: flaw.__name__)
def test_a_planted_bug_is_found(flaw: Callable[[], Any]) -> None:
    for seed in range(SEEDS_MAX):
        try:
            with flaw():
                simulate(seed, live, time_limit_s=600)
        except (AssertionError, InvariantBroken) as error:
            print(f"{flaw.__name__}: found by seed {seed}: {error!r:.150}")
            return
    pytest.fail(f"{SEEDS_MAX} seeds do not find it: {flaw.__doc__}")
