"""What may be tuned about serving and calling proxies."""

from dataclasses import field
from typing import Final

from quire.codec.http2 import FRAME_BYTES_TAKEN
from quire.errors import InvalidArgument
from quire.values import dataclass

MESSAGE_BYTES_MAX: Final = 8 << 20
TIMEOUT_S_MAX: Final = 86_400.0  # A day: longer is a mistake in units.


@dataclass(frozen=True, slots=True)
class CallSettings:
    """For both ends of a connection."""

    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Largest message either way. Both ends should agree."""

    window_bytes: int = 256 << 10
    """How much of one call may be on its way, or wait to be read. What a slow reader costs, and what one call can get
    through in one round trip."""

    keep_alive_s: float = 10.0
    """After this much silence the other end is asked whether it lives."""

    keep_alive_timeout_s: float = 5.0
    """How long its answer may take; then the connection is given up, and its calls with it."""

    connect_timeout_s: float = 5.0
    """Longest wait until the other end has shown that it speaks gRPC."""

    def __post_init__(self) -> None:
        for seconds in (self.keep_alive_s, self.keep_alive_timeout_s, self.connect_timeout_s):
            _check_seconds(seconds)
        if not 0 < self.message_bytes_max <= 1 << 30:
            raise InvalidArgument(f"messages of {self.message_bytes_max} bytes cannot be sent")
        if not 1 << 10 <= self.window_bytes < 1 << 30:
            raise InvalidArgument(f"a window of {self.window_bytes} bytes is too small, or too large")


@dataclass(frozen=True, slots=True)
class ServingSettings:
    """For the proxy's end."""

    calls: CallSettings = field(default_factory=CallSettings)

    connections_max: int = 10_000
    """Further connections are closed at once."""

    calls_max: int = 20_000
    """Calls open at a time, of all clients."""

    calls_per_connection_max: int = 2_000
    """Calls open at a time, of one connection. Clients are told, and ours opens another connection."""

    incoming_bytes_max: int = 256 << 20
    """Memory for requests that have arrived, whole or in part, and were not read yet. Calls that need more are refused.
    One connection gets half of it at most, and less while others need it, too."""

    first_message_timeout_s: float = 10.0
    """How long a call may be open before its first request is there."""

    connection_age_s: float = 1_800.0
    """After this a connection takes no new calls, so that clients spread anew. Some less by chance, so that those which
    came together do not go together."""

    connection_age_grace_s: float = 60.0
    """How long calls of such a connection may go on."""

    def __post_init__(self) -> None:
        for seconds in (self.first_message_timeout_s, self.connection_age_s, self.connection_age_grace_s):
            _check_seconds(seconds)
        for name in ("connections_max", "calls_max", "calls_per_connection_max", "incoming_bytes_max"):
            if getattr(self, name) < 1:
                raise InvalidArgument(f"{name} of {getattr(self, name)} would refuse everything")
        least = 2 * (self.calls.message_bytes_max + 2 * FRAME_BYTES_TAKEN)
        if self.incoming_bytes_max < least:
            raise InvalidArgument(
                f"incoming_bytes_max of {self.incoming_bytes_max} would refuse the largest messages",
                hint=f"With a message_bytes_max of {self.calls.message_bytes_max} give {least} or more.",
            )


def _check_seconds(seconds: float) -> None:
    if not 0 < seconds <= TIMEOUT_S_MAX:  # Also refuses NaN.
        raise InvalidArgument(
            f"{seconds} s is no timeout of a call", hint=f"Give seconds between 0 and {TIMEOUT_S_MAX:g}."
        )
