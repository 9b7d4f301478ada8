"""What may be tuned about a connection to a bookie."""

from typing import Final

from quire.codec.wire.frames import FRAME_BYTES_MAX
from quire.errors import InvalidArgument
from quire.values import dataclass

TIMEOUT_S_MAX: Final = 86_400.0  # A day: longer is a mistake in units.


@dataclass(frozen=True, slots=True)
class ChannelSettings:
    """How patient a connection is, and how much it takes."""

    connect_timeout_s: float = 10.0
    """Longest wait for a connection, and again for a TLS handshake."""

    request_timeout_s: float = 5.0
    """Longest wait for an answer where the caller names none, and for every add. Apache's clients wait as long."""

    close_grace_s: float = 1.0
    """How long closing waits for bytes that the bookie has not taken yet."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    """Largest frame either way, its length included. The bookie's own limit should be the same: it closes the
    connection over a larger one."""

    unsent_bytes_high: int = 1 << 20
    """Above this the channel is not writable. It covers what a bookie takes within some milliseconds."""

    unsent_bytes_max: int = 64 << 20
    """Above this requests are refused: the caller did not heed `is_writable`, and memory has an end."""

    def __post_init__(self) -> None:
        for seconds in (self.connect_timeout_s, self.request_timeout_s, self.close_grace_s):
            if not 0 < seconds <= TIMEOUT_S_MAX:  # Also refuses NaN.
                raise InvalidArgument(
                    f"{seconds} s is no timeout of a channel", hint=f"Give seconds between 0 and {TIMEOUT_S_MAX:g}."
                )
        if not 0 < self.unsent_bytes_high <= self.unsent_bytes_max:
            raise InvalidArgument(
                f"a channel cannot stop being writable at {self.unsent_bytes_high} bytes and refuse at "
                f"{self.unsent_bytes_max}"
            )
