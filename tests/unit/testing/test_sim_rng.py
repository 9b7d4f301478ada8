"""`SimRng`: the same numbers for the same seed, here and in every other process."""

from quire.testing import SimRng


def test_the_numbers_of_a_seed_are_fixed_for_all_time() -> None:
    """Written down, because a seed that once found a bug has to find it again after an upgrade of Python."""
    rng = SimRng(42)
    assert rng.bytes(4).hex() == "70be4179"
    assert str(rng.uuid()) == "d6aaaf74-d56e-48a2-baf5-9ffab0470448"


def test_children_depend_on_the_name_and_not_on_what_was_drawn() -> None:
    drawn, fresh = SimRng(1), SimRng(1)
    drawn.bytes(1000)
    assert drawn.child("disk").bytes(8) == fresh.child("disk").bytes(8)
    assert fresh.child("disk").bytes(8) != fresh.child("network").bytes(8)
    assert fresh.child("a").child("b").bytes(8) != fresh.child("b").child("a").bytes(8)


def test_every_kind_of_draw_stays_in_its_bounds() -> None:
    rng = SimRng("bounds")
    items = list(range(10))
    for _ in range(200):
        assert 0 <= rng.random() < 1
        assert 0 <= rng.randrange(3) < 3
        assert 5 <= rng.randrange(5, 8) < 8
        assert 2 <= rng.uniform((2, 3)) < 3
        assert rng.choice(items) in items
        assert len(set(rng.sample(items, 4))) == 4
        rng.shuffle(items)
        assert sorted(items) == list(range(10))
        assert rng.uuid().version == 4
