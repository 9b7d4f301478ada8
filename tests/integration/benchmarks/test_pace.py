import time

import pytest
from benchmarks.ledger.measure import at_rate


async def test_what_is_held_up_was_due_all_the_same() -> None:
    """Waits are counted from when an entry was due, or a standstill would hide all that should have come meanwhile.

    Method: the first call holds the loop for 100 ms, in which 20 more are due.
    """
    due_s: list[float] = []
    waited_s: list[float] = []

    def act(due: float) -> None:
        now = time.perf_counter()
        due_s.append(due)
        waited_s.append(now - due)
        while len(due_s) == 1 and time.perf_counter() < now + 0.1:
            pass

    await at_rate(40, 200, act)
    assert [later - due_s[0] for later in due_s] == pytest.approx([number / 200 for number in range(40)])
    assert min(waited_s) >= 0
    assert waited_s[1] > 0.09
    assert waited_s[10] > 0.04
