"""The states of a stream at a proxy: which may follow which, and what happens to operations in each."""

import itertools

import pytest

from quire.errors import InvariantBroken
from quire.protocol.stream_states import StreamLife, StreamState, Treatment

UNINITIALIZED, INITIALIZING, INITIALIZED = StreamState.UNINITIALIZED, StreamState.INITIALIZING, StreamState.INITIALIZED
CLOSING, CLOSED, ERROR = StreamState.CLOSING, StreamState.CLOSED, StreamState.ERROR

LIVES = [
    (INITIALIZING, INITIALIZED, CLOSING, CLOSED),
    (INITIALIZING, INITIALIZED, ERROR, CLOSING, CLOSED),
    (INITIALIZING, ERROR, CLOSING, CLOSED),
    (ERROR, CLOSING, CLOSED),
]


def lived(*states: StreamState) -> StreamLife:
    life = StreamLife()
    for state in states:
        life.move(state)
    return life


@pytest.mark.parametrize("states", LIVES)
def test_these_are_all_ways_through_life(states: tuple[StreamState, ...]) -> None:
    """And nothing else may follow at any step: a life only moves forward."""
    for length in range(len(states) + 1):
        begun = states[:length]
        following = {life[length] for life in LIVES if life[:length] == begun and len(life) > length}
        for state in StreamState:
            life = lived(*begun)
            if state in following:
                life.move(state)
                assert life.state is state
            else:
                with pytest.raises(InvariantBroken, match="history"):
                    life.move(state)
                assert life.state is (begun[-1] if begun else UNINITIALIZED)


def test_operations_wait_while_it_opens_and_are_refused_once_it_is_over() -> None:
    treated = {
        UNINITIALIZED: Treatment.WAIT,
        INITIALIZING: Treatment.WAIT,
        INITIALIZED: Treatment.CARRY_OUT,
        ERROR: Treatment.REFUSE,
        CLOSING: Treatment.REFUSE,
        CLOSED: Treatment.REFUSE,
    }
    for states in LIVES:
        for length in range(len(states) + 1):
            life = lived(*states[:length])
            assert life.treatment is treated[life.state]
            assert life.is_over == (life.treatment is Treatment.REFUSE)


def test_only_a_life_without_errors_is_worth_flushing() -> None:
    assert lived(INITIALIZING, INITIALIZED, CLOSING).was_serving
    assert not lived(INITIALIZING, INITIALIZED, ERROR, CLOSING).was_serving
    assert not lived(INITIALIZING, ERROR).was_serving


def test_gauges_are_those_of_apache() -> None:
    numbers = {state.name: state.value for state in StreamState}
    assert numbers == {
        "UNINITIALIZED": -1,
        "INITIALIZING": 0,
        "INITIALIZED": 1,
        "CLOSING": -4,
        "CLOSED": -5,
        "ERROR": -6,
    }
    assert len(set(itertools.chain.from_iterable(LIVES))) == 5
