"""Which connection goes when there are too many of them, and what it costs to find out."""

from quire.runtime.http_server import _Crowd

MOST = 1_000


class Stranger:
    """A connection whose client keeps the server waiting."""

    client: tuple[str, int] | None = None
    looks = 0

    def __init__(self, due_s: float, *, is_idle: bool = False) -> None:
        self.due_s, self.is_idle = due_s, is_idle
        self.is_given_up = False

    def waiting(self, now_s: float) -> tuple[bool, bool, float]:
        Stranger.looks += 1
        return now_s <= self.due_s, self.is_idle, self.due_s

    def give_up(self) -> None:
        self.is_given_up = True


def crowded(*more: Stranger) -> tuple[_Crowd, set[Stranger]]:
    """As many as there may be: the ones given, and others that have become slow one after the other."""
    return _Crowd(MOST, "test"), {*more, *(Stranger(number / MOST) for number in range(MOST - len(more)))}


def test_very_many_that_come_within_a_moment_cost_little_more_than_one() -> None:
    crowd, connections = crowded()
    before = Stranger.looks
    slowest = sorted(connections, key=lambda each: each.due_s)
    for number in range(MOST // 2):
        connections.add(Stranger(11.0))
        crowd.on_new(connections, 10.0)
        assert slowest[number].is_given_up
    assert crowd.given_up == MOST // 2
    assert Stranger.looks - before < 3 * MOST


def test_one_that_said_something_or_is_gone_since_is_passed_over() -> None:
    crowd, connections = crowded()
    first, second, third, fourth = sorted(connections, key=lambda each: each.due_s)[:4]
    for _ in range(2):
        connections.add(Stranger(11.0))
        crowd.on_new(connections, 10.0)
        second.due_s = 11.0
        connections.discard(third)
        connections.add(Stranger(11.0))
    assert (first.is_given_up, second.is_given_up, third.is_given_up) == (True, False, False)
    assert fourth.is_given_up


def test_a_stranger_that_has_just_come_goes_before_a_quick_client_that_is_idle() -> None:
    idle = [Stranger(10.5, is_idle=True) for _ in range(MOST - 1)]
    crowd, connections = crowded(*idle)
    for _ in range(20):
        new = Stranger(11.0)
        connections.add(new)
        crowd.on_new(connections, 10.0)
    assert sum(each.is_given_up for each in connections) == 20
    assert not any(each.is_given_up for each in idle)


def test_those_that_were_given_up_do_not_count_and_are_not_counted_again_when_they_are_gone() -> None:
    crowd, connections = crowded()
    connections.add(Stranger(11.0))
    crowd.on_new(connections, 10.0)
    (leaving,) = [each for each in connections if each.is_given_up]
    for _ in range(3):
        crowd.on_new(connections, 10.0)
    connections.discard(leaving)
    crowd.on_lost(leaving)
    crowd.on_new(connections, 10.0)
    assert crowd.given_up == 1
