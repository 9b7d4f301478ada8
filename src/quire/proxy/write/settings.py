"""What may be tuned about a write proxy."""

import math
from dataclasses import field

from quire.codec.stream.limits import PAYLOAD_BYTES_MAX
from quire.errors import InvalidArgument
from quire.protocol.balancing import BalanceSettings
from quire.protocol.limit_rules import AcquireLimits, LimitRules
from quire.protocol.rate_limits import RateLimits
from quire.values import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class WriteProxySettings:
    """How a proxy takes streams, how much it takes at once, and how patient it is."""

    shard: int = 0
    """The number of this proxy among those of the namespace. It stands in locks and in the live set, for operators."""

    session_timeout_s: float = 2.0
    """That of the metadata session which the locks belong to. A dead proxy's streams are free after this long, and what
    depends on it (how long a refused stream is not tried again, how long clients are told to wait) is a part of it."""

    # --- Windows

    window_bytes: int = 4 * MIB
    """What one Write call may have under way. More does not make it faster, and costs memory for every client."""

    window_batches: int = 256
    """The same in batches."""

    batch_bytes_max: int = 4 * MIB
    """Payload bytes of one batch, of a record set before compression. gRPC's messages have a limit, too: 8 MiB."""

    record_bytes_max: int = PAYLOAD_BYTES_MAX
    """Of one record's payload."""

    batch_records_max: int = 16_384
    """A batch is encoded in one step: it should not keep the event loop for long. The same for members of a record set,
    which are looked at in one step."""

    streams_per_call_max: int = 10_000
    """Streams that one Write call names: something is remembered of each."""

    # --- How much is under way

    stream_in_flight_bytes_max: int = 32 * MIB
    """Of one stream, from all clients: what is more is refused as over capacity."""

    in_flight_bytes_max: int = 256 * MIB
    """Of all streams: bounds the memory of the process."""

    queue_operations_max: int = 1000
    """What waits while a stream is being acquired, in operations."""

    queue_bytes_max: int = 8 * MIB
    """The same in bytes."""

    # --- Taking streams

    acquires_max: int = 64
    """Streams that are acquired at the same time: after a start of everything the store and the bookies should not
    drown in it."""

    acquires_waiting_max: int = 1024
    """Streams that wait for that. Whatever comes beyond is told to come again."""

    acquire_timeout_s: float = 30.0
    """Longest time to take the lock, recover what the last owner left, and know the producers."""

    acquire_backoff_s: float = 1.0
    """After a second failure in a row a stream is not tried again for so long; twice as long after each further one."""

    acquire_backoff_s_max: float = 30.0

    streams_cached_max: int = 20_000
    """Streams that this proxy has to do with at all. 0 or more; beyond it others are to be asked."""

    streams_owned_max: int = 10_000
    """Streams that it owns: each has a ledger open, and so connections, buffers and a task."""

    acquire_requests_per_s: float | None = None
    """Above this rate of requests, over the last minute, no further streams are taken."""

    acquire_bytes_per_s: float | None = None
    """Above this rate of bytes, over the last minute, no further streams are taken: 0.9 of the hard limit is usual."""

    # --- Limits

    proxy_limits: RateLimits = field(default=RateLimits())
    """Of everything that this proxy appends."""

    namespace_limits: RateLimits = field(default=RateLimits())
    """Of what it appends for its namespace."""

    stream_limits: RateLimits = field(default=RateLimits())
    """Of each stream."""

    # --- Balancing

    balance: BalanceSettings = field(default=BalanceSettings())
    """When streams go from this proxy to others that have less to do, and the other way round."""

    # --- Giving streams up

    service_timeout_s: float = 60.0
    """An append that takes longer shows that the stream cannot be written from here. 0 for never."""

    probation_s: float = 120.0
    """For how long such a stream is not taken again: others may have a better way to the bookies."""

    close_timeout_s: float = 5.0
    """How long clients wait for a stream to be closed. It goes on after that, and the lock is kept until it is done."""

    stream_idle_unload_s: float = 900.0
    """A stream that nobody used, or has a Write call open for, is given up after so long, give or take a fifth. 0 for
    never."""

    drain_streams_per_s: float = 100.0
    """How fast streams are given up when the proxy is drained: those who take them have to recover each."""

    graceful_period_s: float = 20.0
    """How long a drained proxy goes on to tell clients where to go."""

    # --- Producers

    snapshot_entries: int = 10_000
    """After so many entries the producers of a stream are written down again, if it has any."""

    snapshot_s: float = 60.0
    """After so long, if there is anything new about them."""

    snapshot_bytes: int = 4 * MIB
    """After so many bytes, or eight times the size of a snapshot: who takes over the stream reads that much."""

    # --- What is told

    stream_metrics: bool = False
    """Whether metrics have a line for each stream. With thousands of them a scrape is large, and whoever stores it pays
    for it: `ListOwned` has the same."""

    @property
    def limit_rules(self) -> LimitRules:
        """All limits of this proxy, as they are at its start."""
        acquire = AcquireLimits(self.acquire_requests_per_s, self.acquire_bytes_per_s)
        return LimitRules(self.proxy_limits, self.namespace_limits, acquire, self.stream_limits)

    def __post_init__(self) -> None:
        positive = (
            self.session_timeout_s,
            self.window_bytes,
            self.window_batches,
            self.batch_bytes_max,
            self.batch_records_max,
            self.queue_operations_max,
            self.queue_bytes_max,
            self.acquires_max,
            self.acquire_timeout_s,
            self.drain_streams_per_s,
            self.close_timeout_s,
        )
        if not all(0 < number < math.inf for number in positive):
            raise InvalidArgument("a write proxy needs windows, queues and times above 0")
        if not 0 < self.record_bytes_max <= PAYLOAD_BYTES_MAX:
            raise InvalidArgument(f"records take {PAYLOAD_BYTES_MAX} bytes at most", hint="Leave it as it is.")
        if self.service_timeout_s < 0 or self.stream_idle_unload_s < 0 or self.graceful_period_s < 0:
            raise InvalidArgument("times are counted from 0")
