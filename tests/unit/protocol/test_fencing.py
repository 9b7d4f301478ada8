"""What a bookie accepts once a ledger is fenced, and from whom."""

from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.fencing import LedgerGate, Refusal

KEY, OTHER = b"k" * 20, b"o" * 20


def test_an_ordinary_add_is_accepted_until_the_fence_and_never_after() -> None:
    gate = LedgerGate(KEY)
    assert gate.on_add(KEY, recovery=False) is None
    assert gate.on_fence(KEY) is None
    assert gate.on_add(KEY, recovery=False) is Refusal.FENCED
    assert gate.on_add(KEY, recovery=True) is None
    assert gate.on_explicit_lac(KEY) is None


def test_the_key_is_looked_at_before_the_fence() -> None:
    gate = LedgerGate(KEY, fenced=True)
    for refusal in (
        gate.on_add(OTHER, recovery=False),
        gate.on_add(OTHER, recovery=True),
        gate.on_add(b"", recovery=True),
        gate.on_fence(OTHER),
        gate.on_explicit_lac(OTHER),
    ):
        assert refusal is Refusal.WRONG_KEY


def test_a_fence_without_the_key_changes_nothing() -> None:
    gate = LedgerGate(KEY)
    assert gate.on_fence(OTHER) is Refusal.WRONG_KEY
    assert gate.on_add(KEY, recovery=False) is None


EVENTS = st.lists(st.tuples(st.sampled_from(["add", "recovery", "fence", "lac"]), st.sampled_from([KEY, OTHER])))


@given(EVENTS)
def test_no_order_of_events_lets_an_ordinary_add_past_a_fence(events: list[tuple[str, bytes]]) -> None:
    gate, fenced = LedgerGate(KEY), False
    for kind, key in events:
        if kind == "fence":
            fenced = fenced or key == KEY
            assert (gate.on_fence(key) is None) == (key == KEY)
        elif kind == "lac":
            assert (gate.on_explicit_lac(key) is None) == (key == KEY)
        else:
            accepted = gate.on_add(key, recovery=kind == "recovery") is None
            assert accepted == (key == KEY and (not fenced or kind == "recovery"))
        assert gate.fenced == fenced
