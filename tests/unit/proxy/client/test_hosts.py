"""Which proxies there are, and whom to ask first."""

from quire.codec.pb import quire_v1_pb2 as pb
from quire.protocol.ring import HashRing
from quire.proxy.client.hosts import Hosts


class FixedClock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s

    def wall_ms(self) -> int:
        return 0

    async def sleep(self, seconds: float) -> None:
        raise NotImplementedError


def member(host: str, role: int = pb.WRITE_PROXY, instance: str = "1") -> pb.Member:
    return pb.Member(role=role, address=pb.Owner(host=host, port=1, instance=instance))  # type: ignore[arg-type]


def made() -> tuple[Hosts, FixedClock]:
    clock = FixedClock()
    hosts = Hosts(clock, namespace="ns", seeds=["seed:1"], blackout_s=5.0)
    hosts.on_members([member("a"), member("b"), member("c"), member("r", pb.READ_PROXY)])
    return hosts, clock


def test_proxies_are_asked_in_the_order_of_the_ring_of_their_kind() -> None:
    hosts, _ = made()
    assert hosts.writers_of("s0") == list(HashRing(["a:1", "b:1", "c:1"]).candidates("ns/s0"))
    assert hosts.writers_of("s0")[0] == "b:1", "as the specification's vectors say"
    assert hosts.readers_of("s0") == ["r:1"]
    assert set(hosts.anybody("client")) == {"a:1", "b:1", "c:1", "r:1", "seed:1"}


def test_a_proxy_that_could_not_be_reached_comes_last_until_it_answers_or_some_time_has_passed() -> None:
    hosts, clock = made()
    first, *rest = hosts.writers_of("s")
    hosts.on_unreachable(first)
    assert hosts.writers_of("s") == [*rest, first]
    clock.now_s += 5.1
    assert hosts.writers_of("s") == [first, *rest]
    hosts.on_unreachable(first)
    hosts.on_answer(first)
    assert hosts.writers_of("s") == [first, *rest]


def test_another_life_of_a_proxy_is_not_held_responsible_for_the_one_before() -> None:
    hosts, _ = made()
    hosts.on_unreachable("a:1")
    hosts.on_members([member("a", instance="2"), member("b"), member("c")])
    assert not hosts.is_dark("a:1")


def test_changes_are_told_and_an_empty_list_is_none() -> None:
    hosts, _ = made()
    changes = []
    hosts.on_change = lambda: changes.append(sorted(hosts.writers.hosts))
    hosts.on_members([member("a"), member("b"), member("c"), member("r", pb.READ_PROXY)])
    assert changes == []
    hosts.on_members([member("a")])
    assert changes == [["a:1"]]
    hosts.on_members([])
    assert hosts.writers.hosts == {"a:1"}, "whoever knows nobody does not know"
