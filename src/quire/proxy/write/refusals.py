"""Why streams are not taken, and for how long: who asks again too soon gets the same answer, and no lock is looked at.

Invariants:
  NeverSelf         nobody is sent on to the proxy that it has just asked.
  LiveOrWait        who is sent on to a proxy that seems to be dead is told how long to wait, too.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NotOwner, QuireError, StreamOwned, StreamUnavailable
from quire.proxy.membership import LiveSet
from quire.proxy.write.answers import lock_address, not_ready, unavailable
from quire.proxy.write.operations import Operation
from quire.proxy.write.settings import WriteProxySettings
from quire.runtime import Clock, Rng

_HOLDS_MAX: Final = 100_000  # They are short; but names of streams are whatever clients send.

Refusing = Callable[[Operation], QuireError]
"""What to tell an operation: it depends on whom its client has tried."""


class Hold(NamedTuple):
    """A stream that is not tried again until then, or until its owner, which lives, does not any more."""

    until_s: float
    refusing: Refusing
    owner: str | None = None
    is_elsewhere: bool = False  # Because of its owner, and not because it cannot be written from here.


class Refusals:
    """The streams that are on hold, and what clients are told of streams of others."""

    def __init__(self, settings: WriteProxySettings, live: LiveSet, address: pb.Owner, clock: Clock, rng: Rng) -> None:
        self._settings, self._live, self._address, self._clock, self._rng = settings, live, address, clock, rng
        self._holds: dict[str, Hold] = {}
        self._blocked: dict[str, list[Refusing]] = {}
        self._failures: dict[str, int] = {}  # In a row.

    # --- Holding

    def hold(
        self,
        stream: str,
        seconds: float,
        refusing: Refusing,
        *,
        owner: str | None = None,
        is_elsewhere: bool = False,
    ) -> None:
        """Tell `refusing` to whoever wants the stream, for so long. The longest hold counts."""
        until_s, known = self._clock.monotonic() + seconds, self._holds.get(stream)
        if known is not None and known.until_s > until_s:
            return
        if len(self._holds) >= _HOLDS_MAX:
            del self._holds[next(iter(self._holds))]
        lives = owner if owner in self._live.addresses else None
        self._holds[stream] = Hold(until_s, refusing, lives, is_elsewhere)

    @contextmanager
    def blocked(self, stream: str, refusing: Refusing) -> Iterator[None]:
        """Tell `refusing` to whoever wants the stream, for the block. Holds that there are stay, and count after it."""
        self._blocked.setdefault(stream, []).append(refusing)
        try:
            yield
        finally:
            self._blocked[stream].remove(refusing)
            if not self._blocked[stream]:
                del self._blocked[stream]

    def held(self, stream: str) -> Refusing | None:
        """What to tell whoever wants this stream, if it is on hold."""
        if stream in self._blocked:
            return self._blocked[stream][0]
        hold = self._holds.get(stream)
        if hold is None:
            return None
        is_free = hold.owner is not None and hold.owner not in self._live.addresses  # With its session its lock went.
        if is_free or self._clock.monotonic() >= hold.until_s:
            del self._holds[stream]
            return None
        return hold.refusing

    def forget_over(self) -> None:
        """Holds that nobody asked for since they ended."""
        now_s = self._clock.monotonic()
        for stream in [stream for stream, hold in self._holds.items() if hold.until_s <= now_s]:
            del self._holds[stream]

    def __len__(self) -> int:
        return len(self._holds)

    # --- Why

    def on_success(self, stream: str) -> None:
        self._failures.pop(stream, None)

    def on_failure(self, stream: str, error: QuireError) -> Refusing:
        """It could not be acquired, or its writer failed. The first time it may be tried again at once."""
        if isinstance(error, StreamOwned):
            return self._on_owned(stream, error)
        failures = self._failures.pop(stream, -1) + 1
        self._failures[stream] = failures
        if len(self._failures) > _HOLDS_MAX:
            del self._failures[next(iter(self._failures))]
        seconds = 0.0
        if failures:
            first_s, longest_s = self._settings.acquire_backoff_s, self._settings.acquire_backoff_s_max
            seconds = min(longest_s, first_s * 2.0 ** min(failures - 1, 30)) * (0.75 + 0.5 * self._rng.random())

        def refusing(operation: Operation) -> QuireError:
            return unavailable(stream, error, retry_after_ms=max(50, round(seconds * 1000)))

        if seconds:
            self.hold(stream, seconds, refusing)
        return refusing

    def on_probation(self, stream: str, error: QuireError) -> None:
        """It cannot be written from here: others should try."""
        seconds = self._settings.probation_s

        def refusing(operation: Operation) -> QuireError:
            return StreamUnavailable(
                f"stream {stream!r} could not be written from here: {error}",
                hint="Ask another proxy: this one does not take it for a while.",
                stream=stream,
            )

        self.hold(stream, seconds, refusing)

    def on_moved(self, stream: str, to: pb.Owner) -> None:
        """It was given up to another proxy, which should find it free."""
        self.hold(
            stream,
            self._settings.session_timeout_s * 2 / 3,
            lambda operation: self.not_owner(stream, to, operation.tried),
            owner=f"{to.host}:{to.port}",
            is_elsewhere=True,
        )

    def on_handed_over(self, stream: str) -> None:
        """Whoever had it gave it to this proxy. That it was elsewhere a moment ago, perhaps given up by ourselves, is
        no reason not to take it; that it could not be written from here still is."""
        hold = self._holds.get(stream)
        if hold is not None and hold.is_elsewhere:
            del self._holds[stream]

    def _on_owned(self, stream: str, error: StreamOwned) -> Refusing:
        owner = error.facts.get("owner")
        address = lock_address(owner) if isinstance(owner, str) else None
        session_s = self._settings.session_timeout_s
        if address is not None and address == self._own_lock_address():
            # Our own lock of an earlier life, or one that is being given back: never send anybody to ourselves.
            def refusing(operation: Operation) -> QuireError:
                return not_ready(
                    stream, "this proxy's own lock is not free yet", retry_after_ms=self.jittered_ms(session_s / 4)
                )

            self.hold(stream, session_s / 8, refusing)
            return refusing
        if address is None:

            def refusing(operation: Operation) -> QuireError:
                return StreamUnavailable(
                    f"stream {stream!r} is written by {owner}, which is no proxy",
                    hint="Wait until it closes its writer.",
                    stream=stream,
                    retry_after_ms=self.jittered_ms(session_s / 4),
                )
        else:
            found = address

            def refusing(operation: Operation) -> QuireError:
                return self.not_owner(stream, self.owner_at(found), operation.tried)

        owned_by = None if address is None else self.owner_at(address)
        at = None if owned_by is None else f"{owned_by.host}:{owned_by.port}"
        self.hold(stream, session_s * 2 / 3, refusing, owner=at, is_elsewhere=True)
        return refusing

    # --- Redirects

    def _own_lock_address(self) -> str:
        return f"{self._address.host}:{self._address.port}".replace("_", "-")

    def owner_at(self, address: str) -> pb.Owner:
        """The proxy that a lock names. The live set knows more of it, and how it spells its name."""
        for member in self._live.current:
            if member.address.replace("_", "-") == address:
                return member.owner
        host, _, port = address.rpartition(":")
        return pb.Owner(host=host, port=int(port))

    def is_live(self, owner: pb.Owner, tried: object = ()) -> bool:
        address = f"{owner.host}:{owner.port}"
        is_tried = isinstance(tried, list | tuple) and address in tried
        return address in self._live.addresses and not is_tried

    def not_owner(self, stream: str, owner: pb.Owner, tried: object = ()) -> NotOwner:
        """Send a client on to the owner. If that one seems to be dead, the client should wait."""
        is_live = self.is_live(owner, tried)
        return NotOwner(
            f"stream {stream!r} belongs to {owner.host}:{owner.port}",
            stream=stream,
            proxy=owner,
            owner_live=is_live,
            retry_after_ms=0 if is_live else self.jittered_ms(self._settings.session_timeout_s / 4),
        )

    def jittered_ms(self, seconds: float) -> int:
        """At most so long, and at least half of it: not all who were refused come back at once."""
        return max(1, math.ceil(seconds * 500 * (1 + self._rng.random())))

    @property
    def knows_members(self) -> bool:
        """Before that nobody can say who lives, and where a client should go."""
        return self._live.is_loaded
