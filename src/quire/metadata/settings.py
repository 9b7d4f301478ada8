"""What may be tuned about a metadata store."""

from typing import Final

from quire.errors import InvalidArgument
from quire.values import dataclass

TIMEOUT_S_MAX: Final = 86_400.0  # A day: longer is a mistake in units, and overflows what some backends count in.


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How patient a store handle is, and how long the store waits for a silent one."""

    operation_timeout_s: float = 10.0
    """Longest wait of one call, connecting included. Then it fails with an error that names the servers."""

    session_timeout_s: float = 10.0
    """How long after its last sign of life a client's ephemeral nodes stay. Shorter finds dead processes sooner;
    a process that is stopped for longer than this (debugged, swapped out, suspended) loses its session."""

    create_missing: bool = True
    """Whether a store that is a file may be created. Commands that only look say no, so that a mistyped name is an
    error and leaves nothing behind."""

    sole_user: bool = False
    """Whether whoever opens a store that is a file has made sure that nobody else uses it. Sessions that are left in
    it are then those of processes that died, and end at once instead of when their time is up."""

    def __post_init__(self) -> None:
        for seconds in (self.operation_timeout_s, self.session_timeout_s):
            if not 0 < seconds <= TIMEOUT_S_MAX:  # Also refuses NaN.
                raise InvalidArgument(
                    f"{seconds} s is no metadata timeout", hint=f"Give seconds between 0 and {TIMEOUT_S_MAX:g}."
                )
