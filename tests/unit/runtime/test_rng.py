"""`SystemRng`: every draw keeps to its bounds, and two sources do not agree."""

import pytest

from quire.runtime import Rng, SystemRng


def test_draws_keep_to_their_bounds() -> None:
    rng: Rng = SystemRng()
    items = list(range(10))
    for _ in range(100):
        assert 0 <= rng.random() < 1
        assert 0 <= rng.randrange(3) < 3
        assert 5 <= rng.randrange(5, 8) < 8
        assert rng.choice(items) in items
        assert len(set(rng.sample(items, 4))) == 4
        rng.shuffle(items)
        assert sorted(items) == list(range(10))
    assert len(rng.bytes(5)) == 5
    assert rng.uuid().version == 4


def test_impossible_draws_raise() -> None:
    rng: Rng = SystemRng()
    with pytest.raises(ValueError, match="empty range"):
        rng.randrange(0)
    with pytest.raises(IndexError):
        rng.choice([])
    with pytest.raises(ValueError, match=r"[Ss]ample"):
        rng.sample([1], 2)


def test_two_sources_differ() -> None:
    assert SystemRng().bytes(16) != SystemRng().bytes(16)
    assert SystemRng().uuid() != SystemRng().uuid()
