"""Where a request goes next, when it is given up, and what is never sent twice."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.redirects import Advice, Failure, GiveUp, RetryRules, Route, Send, Wait

A, B, C = "a:1", "b:1", "c:1"
HOSTS = (A, B, C)
DRAW = 0.5
RULES = RetryRules()


class Journey:
    """One request, with a clock that moves when it waits."""

    def __init__(self, *, may_repeat: bool = True, deadline_s: float = 10.0, hosts: Sequence[str] = HOSTS) -> None:
        self.route = Route(RULES, deadline_s=deadline_s, may_repeat=may_repeat)
        self.now_s, self.hosts = 0.0, hosts
        self.owner: str | None = None

    def next(self) -> Send | Wait | GiveUp:
        return self.route.next(self.now_s, owner=self.owner, candidates=self.hosts, draw=DRAW)

    def sent(self) -> str:
        step = self.next()
        assert isinstance(step, Send), step
        return step.host

    def waited(self) -> float:
        step = self.next()
        assert isinstance(step, Wait), step
        passed_s, self.now_s = step.until_s - self.now_s, step.until_s
        return passed_s

    def fails(self, host: str, failure: Failure) -> bool:
        return self.route.on_failure(host, failure, self.now_s, draw=DRAW)


UNREACHABLE = Failure(Advice.HOST_GONE, answered=False)


def test_the_owner_comes_first_and_then_the_ring() -> None:
    journey = Journey()
    journey.owner = B
    order = []
    for _ in HOSTS:
        order.append(journey.sent())
        assert journey.fails(order[-1], UNREACHABLE)
    assert order == [B, A, C]


def test_when_everybody_was_tried_a_round_begins_after_a_pause_that_doubles() -> None:
    journey, pauses = Journey(), []
    for _ in range(8):
        for _ in HOSTS:
            assert journey.fails(journey.sent(), Failure(Advice.ELSEWHERE))
        pauses.append(journey.waited())
    assert pauses == pytest.approx([0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.5, 0.5])


def test_a_request_that_nobody_answers_is_given_up_after_some_rounds_and_one_that_somebody_answers_is_not() -> None:
    for answers in (False, True):
        journey, steps = Journey(deadline_s=1000.0), 0
        while not isinstance(step := journey.next(), GiveUp) and steps < 500:
            steps += 1
            if isinstance(step, Wait):
                journey.now_s = step.until_s
            else:
                journey.fails(step.host, Failure(Advice.ELSEWHERE) if answers and step.host == A else UNREACHABLE)
        assert isinstance(step, GiveUp) != answers


def test_a_redirect_leads_to_the_owner_that_it_names() -> None:
    journey = Journey()
    assert journey.sent() == A
    assert journey.fails(A, Failure(Advice.OWNER, owner=C))
    journey.owner = C
    assert journey.sent() == C


def test_proxies_that_name_each_other_are_left_alone_for_a_while() -> None:
    journey = Journey(hosts=[A, B])
    for owner in (B, A):
        assert journey.fails(journey.sent(), Failure(Advice.OWNER, owner=owner))
        journey.owner = owner
    assert journey.waited() > 0
    assert journey.sent() == A


def test_after_three_redirects_a_pause_is_due() -> None:
    journey = Journey(hosts=[f"p{number}:1" for number in range(9)])
    for number in (5, 6, 7):
        assert journey.fails(journey.sent(), Failure(Advice.OWNER, owner=f"p{number}:1"))
        journey.owner = f"p{number}:1"
    assert journey.waited() > 0


def test_an_owner_that_does_not_live_is_waited_for_as_long_as_the_proxy_says() -> None:
    journey = Journey()
    assert journey.fails(journey.sent(), Failure(Advice.OWNER, owner=B, owner_live=False, retry_after_s=0.4))
    assert 0.4 <= journey.waited() <= 0.5
    assert journey.sent() == A


def test_an_owner_that_cannot_be_reached_counts_as_dead_whatever_the_others_say() -> None:
    """Until its session ends they believe that it lives, and going back to it at once would be a busy loop."""
    journey = Journey()
    journey.owner = B
    assert journey.fails(journey.sent(), UNREACHABLE)
    waits = []
    for _ in range(6):
        journey.owner = None
        assert journey.sent() == A
        assert journey.fails(A, Failure(Advice.OWNER, owner=B))
        waits.append(journey.waited())
    assert all(0 < wait_s <= RULES.owner_wait_s_max for wait_s in waits)
    assert waits == sorted(waits)


def test_a_proxy_that_asks_for_patience_is_asked_again_later() -> None:
    journey = Journey()
    journey.owner = C
    assert journey.fails(journey.sent(), Failure(Advice.HERE, retry_after_s=1.0))
    assert 1.0 <= journey.waited() <= 1.25
    assert journey.sent() == C


def test_damage_on_the_way_is_tried_once_more() -> None:
    journey = Journey()
    assert journey.fails(journey.sent(), Failure(Advice.AGAIN))
    assert journey.sent() == A
    assert not journey.fails(A, Failure(Advice.AGAIN))


def test_what_may_have_happened_is_not_sent_again_unless_that_does_no_harm() -> None:
    for may_repeat in (False, True):
        journey = Journey(may_repeat=may_repeat)
        failure = Failure(Advice.HOST_GONE, answered=False, may_have_happened=True)
        assert journey.fails(journey.sent(), failure) == may_repeat
        assert journey.route.may_have_happened


def test_news_end_a_pause() -> None:
    journey = Journey(hosts=[A])
    assert journey.fails(journey.sent(), Failure(Advice.OWNER, owner=B, owner_live=False, retry_after_s=5.0))
    assert isinstance(journey.next(), Wait)
    journey.route.on_news()
    assert journey.sent() == A


FAILURES = st.builds(
    Failure,
    st.sampled_from([advice for advice in Advice if advice is not Advice.FINAL]),
    may_have_happened=st.booleans(),
    answered=st.booleans(),
    owner=st.none() | st.sampled_from(HOSTS),
    owner_live=st.booleans(),
    retry_after_s=st.sampled_from([0.0, 0.0, 0.1, 30.0]),
)


@given(
    failures=st.lists(FAILURES, min_size=1, max_size=30),
    latencies_s=st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.5]), min_size=1, max_size=10),
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=10),
    may_repeat=st.booleans(),
    knows_owner=st.booleans(),
)
def test_every_request_ends_by_its_deadline_and_is_never_repeated_unasked(
    failures: list[Failure], latencies_s: list[float], draws: list[float], may_repeat: bool, knows_owner: bool
) -> None:
    """Method: proxies answer as Hypothesis likes, over and over; time passes only by latencies and waits."""
    deadline_s, now_s = 2.0, 0.0
    route = Route(RULES, deadline_s=deadline_s, may_repeat=may_repeat)
    owner: str | None = None
    sent = sent_since_wait = steps = 0
    while True:
        steps += 1
        draw = draws[steps % len(draws)]
        step = route.next(now_s, owner=owner, candidates=HOSTS, draw=draw)
        if isinstance(step, GiveUp):
            assert step.is_late == (now_s >= deadline_s)
            break
        if isinstance(step, Wait):
            assert now_s < step.until_s <= deadline_s
            now_s, sent_since_wait = step.until_s, 0
            continue
        assert now_s < deadline_s
        assert may_repeat or not route.may_have_happened
        failure = failures[sent % len(failures)]
        sent, sent_since_wait = sent + 1, sent_since_wait + 1
        assert sent_since_wait <= len(HOSTS) + 2
        now_s += latencies_s[sent % len(latencies_s)]
        if not route.on_failure(step.host, failure, now_s, draw=draw):
            assert failure.advice is Advice.AGAIN or (failure.may_have_happened and not may_repeat)
            break
        owner = failure.owner if knows_owner and failure.advice is Advice.OWNER else None
    assert steps < 5_000
