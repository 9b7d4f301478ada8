"""Where streams belong on the ring."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from quire.protocol.ring import HashRing, ring_hash

HOSTS = st.sets(st.integers(1, 40).map(lambda number: f"proxy-{number}:7400"), min_size=1, max_size=6)
KEYS = st.text(max_size=20)


def test_places_are_those_of_every_other_implementation() -> None:
    """The vectors of the specification: a client that hashes otherwise asks the wrong proxy each time."""
    assert f"{ring_hash('a:1|0'):016x}" == "938e4865a39440e3"
    assert f"{ring_hash('ns/s0'):016x}" == "51a1ab08cf4c3fc2"
    ring = HashRing(["a:1", "b:1", "c:1"])
    assert [ring.owner(f"ns/s{number}") for number in range(8)] == [f"{host}:1" for host in "bbcccbba"]


@settings(deadline=None)  # Whoever is first has to hash a thousand places.
@given(hosts=HOSTS, key=KEYS)
def test_every_host_is_a_candidate_once_and_their_order_does_not_depend_on_how_they_were_given(
    hosts: set[str], key: str
) -> None:
    found = list(HashRing(sorted(hosts)).candidates(key))
    assert sorted(found) == sorted(hosts)
    assert found == list(HashRing(sorted(hosts, reverse=True)).candidates(key))
    assert found[0] == HashRing(hosts).owner(key)


@settings(deadline=None)  # Whoever is first has to hash a thousand places.
@given(hosts=HOSTS, key=KEYS)
def test_a_host_that_goes_moves_only_what_is_its_own(hosts: set[str], key: str) -> None:
    candidates = list(HashRing(hosts).candidates(key))
    for gone in hosts:
        assert list(HashRing(hosts - {gone}).candidates(key)) == [host for host in candidates if host != gone]


def test_hosts_have_about_the_same_share() -> None:
    ring = HashRing(f"host-{number}:1" for number in range(10))
    shares = Counter(ring.owner(f"ns/s{number}") for number in range(2000))
    assert len(shares) == 10
    assert max(shares.values()) < 1.35 * 200


def test_a_ring_without_hosts_has_no_candidates() -> None:
    assert HashRing(()).owner("ns/s0") is None
    assert list(HashRing(()).candidates("ns/s0")) == []
