"""What may be tuned about a client of proxies.

How records are stored is the proxies' business: quorums, entries, segments and retention are settings of theirs. What a
program says of a stream with `StreamSettings` counts here as far as it is about the program itself, `OURS`; anything
else is refused, since a program that asks for three copies should not be given two without a word.
"""

import math
from dataclasses import field, fields, replace
from typing import Final

from quire.errors import InvalidArgument
from quire.protocol.redirects import RetryRules
from quire.rpc.serving.tls import TlsFiles
from quire.rpc.serving.tokens import Token
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.values import dataclass

OURS: Final = frozenset(
    {
        "create_if_missing",
        "call_timeout_s",
        "lock_timeout_s",  # Of exclusive readers.
        "window_records_max",
        "window_bytes_max",
        "in_flight_entries",  # Of batches, which are what a proxy makes entries of.
        "read_ahead_bytes_max",
        "expand_sets",
        "skip_damaged",
        "idle_error_s",
    }
)
"""Settings of streams that a client of proxies follows."""

_DEFAULTS: Final = StreamSettings()


@dataclass(frozen=True, slots=True)
class ProxyClientSettings:
    """How a client talks to proxies."""

    # --- Writing

    producer_ids: bool = True
    """Whether each writer numbers its records under an id of its own. A batch whose answer was lost is then sent again
    without harm: the owner knows what it has. Without it the outcome of such a batch is unknown, and raised as that."""

    at_least_once: bool = False
    """Without producer ids: whether to send again what may have been stored. Records may then be there twice."""

    append_timeout_s: float = 10.0
    """Longest time for an append, whatever is down. A proxy that dies is followed by another within its session of 2 s
    and a second more; this leaves room for that to happen twice."""

    batch_bytes: int = 64 << 10
    """Records that wait for a batch are sent together up to so many bytes. A proxy makes entries of this size."""

    batch_bytes_max: int = 1 << 20
    """A single call with more than that is sent in several batches, a set as several sets. Other writers' records may
    come between those."""

    batch_records_max: int = 16_384
    """The same in records, and members of a record set: proxies refuse more, unless they were told otherwise."""

    window_bytes: int = 4 << 20
    """What one call to a proxy may have unanswered, if the proxy agrees."""

    ping_s: float = 0.5
    """A proxy that owes answers and says nothing for so long is asked whether it lives."""

    silence_s: float = 2.0
    """One that says nothing for so long is taken for dead: another one has its streams by then, as sessions of proxies
    end after 2 s."""

    # --- Reading

    read_ping_s: float = 1.0
    """How often a read proxy says that it lives while there is nothing to read."""

    read_silence_s: float = 4.0
    """A read proxy that says nothing for so long is left for another one. It may be busy with others for a while."""

    frame_bytes: int = 256 << 10
    """Entries that a read proxy sends in one message."""

    # --- Finding proxies

    token: Token | None = None
    """For proxies that ask for one. A function is asked before each call, so that it can replace one that expires."""

    tls: TlsFiles | None = None
    """For `quires://`: whose certificates to trust, and which one to show. Without it the system's authorities count,
    and none is shown."""

    connect_timeout_s: float = 10.0
    """Longest time for finding a first proxy when a client is opened."""

    handshake_timeout_s: float = 1.0
    """Longest time for one proxy to say who is there."""

    attempt_timeout_s: float = 5.0
    """Longest time for one proxy to answer a call that takes no longer by its nature. Then another one is asked."""

    blackout_s: float = 5.0
    """A proxy that could not be reached is asked after all others for so long."""

    owners_max: int = 100_000
    """Streams whose owner is remembered."""

    retries: RetryRules = field(default_factory=RetryRules)

    def __post_init__(self) -> None:
        times = [getattr(self, each.name) for each in fields(self) if each.name.endswith("_s")]
        if not all(0 < seconds < math.inf for seconds in times):
            raise InvalidArgument("times of a client of proxies are longer than 0 s, and end")
        sizes = (self.batch_bytes, self.batch_bytes_max, self.batch_records_max, self.window_bytes, self.frame_bytes)
        if min(*sizes, self.owners_max) < 1:
            raise InvalidArgument("a client of proxies needs room for at least one record")
        if not self.ping_s < self.silence_s or not self.read_ping_s < self.read_silence_s:
            raise InvalidArgument("a proxy cannot be taken for dead before it was asked")


def check_ours(settings: StreamSettings) -> None:
    """Raises `InvalidArgument` for settings that are the proxies' business and not their defaults."""
    for each in fields(StreamSettings):
        if each.name not in OURS and getattr(settings, each.name) != getattr(_DEFAULTS, each.name):
            raise _refused(each.name)


def with_overrides(settings: StreamSettings, overrides: StreamOverrides) -> StreamSettings:
    """Raises `InvalidArgument` for what does not exist, or is the proxies' business."""
    known = {each.name for each in fields(StreamSettings)}
    for name in overrides:
        if name not in known:
            hint = f"There are: {', '.join(sorted(OURS))}."
            raise InvalidArgument(f"streams have no setting {name!r}", hint=hint)
        if name not in OURS:
            raise _refused(name)
    return replace(settings, **overrides)


def _refused(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"a client of proxies cannot choose {name}: the proxy that writes the stream does",
        hint=f"Set it where the proxies are started. Here there are: {', '.join(sorted(OURS))}.",
        setting=name,
    )
