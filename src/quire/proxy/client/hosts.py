"""Which proxies there are, as far as a client has heard, and whom to ask first.

Invariants:
  LastKnownStays   while nobody says who is there, those that were there last count.
  NobodyIsLost     a proxy that could not be reached is asked after the others for a while, but it is asked: it may
                   be back.
"""

from collections.abc import Callable, Iterable

from quire.codec.pb import quire_v1_pb2 as pb
from quire.protocol.ring import HashRing, ring_of
from quire.proxy.client.failures import address_of
from quire.runtime import Clock


class Hosts:
    """The proxies of one namespace."""

    def __init__(self, clock: Clock, *, namespace: str, seeds: Iterable[str], blackout_s: float) -> None:
        self.namespace = namespace
        self._clock, self._seeds, self._blackout_s = clock, tuple(seeds), blackout_s
        self.writers, self.readers = HashRing(()), HashRing(())
        self._instances: dict[str, str] = {}
        self._dark_until_s: dict[str, float] = {}
        self.on_change: Callable[[], None] = lambda: None
        """Called when there are other proxies than before."""

    # --- What is heard

    def on_members(self, members: Iterable[pb.Member]) -> None:
        """All proxies that are alive, as one of them says."""
        found = {address_of(member.address): member for member in members}
        if not found:
            return  # Whoever says so is not in the list itself: it does not know yet, or not any more.
        for address, member in found.items():
            if self._instances.get(address) not in (None, member.address.instance):
                self._dark_until_s.pop(address, None)  # Another life: what we know is of the one before.
        self._instances = {address: member.address.instance for address, member in found.items()}
        writers = frozenset(address for address, member in found.items() if member.role == pb.WRITE_PROXY)
        readers = frozenset(address for address, member in found.items() if member.role == pb.READ_PROXY)
        if (writers, readers) != (self.writers.hosts, self.readers.hosts):
            self.writers, self.readers = ring_of(writers), ring_of(readers)
            self.on_change()

    def on_unreachable(self, address: str) -> None:
        self._dark_until_s[address] = self._clock.monotonic() + self._blackout_s

    def on_answer(self, address: str) -> None:
        self._dark_until_s.pop(address, None)

    # --- Whom to ask

    def writers_of(self, stream: str) -> list[str]:
        """Write proxies in the order in which they should be asked for a stream."""
        return self._lit_first(self.writers.candidates(f"{self.namespace}/{stream}"))

    def readers_of(self, stream: str) -> list[str]:
        return self._lit_first(self.readers.candidates(f"{self.namespace}/{stream}"))

    def anybody(self, key: str = "") -> list[str]:
        """All that were ever named: write proxies, which know most, then read proxies, then those where we began.

        Whoever asks with another `key` gets another order.
        """
        named = (*self.writers.candidates(key), *self.readers.candidates(key), *self._seeds)
        return self._lit_first(dict.fromkeys(named))

    def is_dark(self, address: str) -> bool:
        """Whether it could not be reached a moment ago."""
        return self._dark_until_s.get(address, 0.0) > self._clock.monotonic()

    def _lit_first(self, addresses: Iterable[str]) -> list[str]:
        ordered = list(addresses)
        if self._dark_until_s:
            ordered.sort(key=self.is_dark)  # Otherwise as they were.
        return ordered
