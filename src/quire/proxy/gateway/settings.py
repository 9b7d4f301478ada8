"""What may be tuned about a gateway. What its OpenAPI description promises to clients is fixed: see `limits`."""

from quire.errors import InvalidArgument
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """How much a gateway takes on at once, and how long it waits for whom."""

    # --- How much at once. Beyond it requests are refused with 429; slow connections and slow bodies go before others.

    connections_max: int = 1024
    """Open connections, idle ones included."""

    calls_max: int = 256
    """Requests under way, but for those that read, and those whose bodies have not arrived."""

    fetches_max: int = 256
    """Reads under way. Most of them wait for records, and hold little meanwhile."""

    tails_max: int = 256
    """Event streams. Each may hold a send buffer and what it has read ahead."""

    body_bytes_max: int = 64 << 20
    """Of all bodies together that have arrived and are not answered."""

    writers_max: int = 256
    """Streams whose writers are open."""

    read_ahead_bytes_max: int = 1 << 20
    """What each reader keeps ready: less than a reader of its own would, as there may be hundreds."""

    # --- How long

    body_timeout_s: float = 30.0
    """A body has arrived by then, or its request is refused with 408."""

    append_timeout_s: float = 30.0
    """An append that has not ended by then is answered with 504. It goes on all the same."""

    lock_timeout_s: float = 1.0
    """How long a writer waits for another client to give up a stream before the answer is 409."""

    writer_idle_s: float = 60.0
    """A stream to which nothing was appended for so long is given back, for others to write."""

    ping_s: float = 15.0
    """An event stream without events for so long gets a comment, so that nobody between us takes it for dead."""

    tail_age_s: float = 1800.0
    """An event stream that is that old is ended. Its client comes back by itself, and goes on where it was."""

    wait_s_max: float = 30.0
    """A read waits no longer for its first record, whatever it asks for."""

    stall_timeout_s: float = 10.0
    """A client that has taken nothing of what waits for it for so long, or has not said what it wants, is cut off."""

    stop_timeout_s: float = 5.0
    """For requests and appends that are under way when the gateway stops."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InvalidArgument(f"a gateway's {name} must be above 0, not {getattr(self, name)}")
