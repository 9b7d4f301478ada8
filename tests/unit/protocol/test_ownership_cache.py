"""Which proxy owns which stream, as far as a client has heard."""

from hypothesis import given
from hypothesis import strategies as st

from quire.protocol.ownership_cache import OwnershipCache

A, B, C = "a:1", "b:1", "c:1"


def cache(streams_max: int = 100) -> OwnershipCache:
    return OwnershipCache(streams_max=streams_max)


def test_an_owner_is_remembered_until_it_is_dropped() -> None:
    known = cache()
    assert known.owner("s") is None
    assert known.update("s", A, epoch=3)
    assert (known.owner("s"), known.epoch("s"), set(known.streams_of(A))) == (A, 3, {"s"})
    assert known.drop("s", expected=A)
    assert (known.owner("s"), known.streams_of(A)) == (None, frozenset())


def test_a_late_failure_does_not_erase_a_newer_owner() -> None:
    known = cache()
    known.update("s", A, epoch=3)
    known.update("s", B, epoch=4)
    assert not known.drop("s", expected=A)
    assert known.owner("s") == B


def test_a_redirect_of_an_earlier_epoch_is_not_followed() -> None:
    """Also after the owner was dropped: the epoch outlives it."""
    known = cache()
    known.update("s", B, epoch=4)
    known.drop("s", expected=B)
    assert not known.is_news("s", 3)
    assert not known.update("s", A, epoch=3)
    assert known.is_news("s", 4)
    assert known.is_news("s", 0), "who does not know the epoch may be right"


def test_an_update_replaces_the_owner_that_it_names_or_an_earlier_epoch() -> None:
    known = cache()
    known.update("s", A, epoch=4)
    assert not known.update("s", B, expected=C), "somebody else was faster"
    assert known.update("s", B, expected=A)
    assert known.update("s", C, epoch=5, expected=A), "a later epoch counts in any case"
    assert (known.owner("s"), known.epoch("s")) == (C, 5)


def test_a_host_that_goes_takes_its_own_streams_along() -> None:
    known = cache()
    for stream, owner in {"s": A, "t": A, "u": B}.items():
        known.update(stream, owner)
    assert known.drop_owner(A) == {"s", "t"}
    assert [known.owner(stream) for stream in "stu"] == [None, None, B]


def test_those_that_were_not_asked_for_longest_are_forgotten_first() -> None:
    known = cache(streams_max=2)
    known.update("s", A)
    known.update("t", A)
    known.owner("s")
    known.update("u", A)
    assert len(known) == 2
    assert [known.owner(stream) for stream in "stu"] == [A, None, A]


def test_a_stream_that_was_deleted_begins_anew() -> None:
    known = cache()
    known.update("s", A, epoch=9)
    known.forget(["s", "never heard of"])
    assert known.update("s", B, epoch=1)


OWNERS = st.sampled_from([A, B, C])
STREAMS = st.sampled_from("stuv")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("update"), STREAMS, OWNERS, st.integers(0, 4), st.none() | OWNERS),
        st.tuples(st.just("drop"), STREAMS, OWNERS),
        st.tuples(st.just("drop_owner"), OWNERS),
        st.tuples(st.just("forget"), STREAMS),
    ),
    max_size=40,
)


@given(steps=STEPS, streams_max=st.integers(1, 4))
def test_both_maps_always_agree(steps: list[tuple[object, ...]], streams_max: int) -> None:
    known = cache(streams_max)
    for step in steps:
        match step:
            case ("update", str(stream), str(owner), int(epoch), expected):
                before = known.epoch(stream)
                done = known.update(
                    stream, owner, epoch=epoch, expected=expected if expected is None else str(expected)
                )
                assert known.epoch(stream) >= before or len(known) <= streams_max
                assert not done or known.owner(stream) == owner
            case ("drop", str(stream), str(owner)):
                known.drop(stream, expected=owner)
            case ("drop_owner", str(owner)):
                known.drop_owner(owner)
                assert not known.streams_of(owner)
            case ("forget", str(stream)):
                known.forget([stream])
        assert len(known) <= streams_max
        owned = {stream: owner for owner in (A, B, C) for stream in known.streams_of(owner)}
        assert owned == {stream: found for stream in "stuv" if (found := known.owner(stream)) is not None}
