"""Settings of calls and of serving refuse what cannot work."""

import math

import pytest

from quire.errors import InvalidArgument
from quire.rpc.serving.settings import CallSettings, ServingSettings


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
def test_times_are_positive_and_finite(seconds: float) -> None:
    for name in ("keep_alive_s", "keep_alive_timeout_s", "connect_timeout_s"):
        with pytest.raises(InvalidArgument):
            CallSettings(**{name: seconds})  # type: ignore[arg-type]
    for name in ("first_message_timeout_s", "connection_age_s", "connection_age_grace_s"):
        with pytest.raises(InvalidArgument):
            ServingSettings(**{name: seconds})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["connections_max", "calls_max", "calls_per_connection_max", "incoming_bytes_max"])
def test_limits_let_something_through(name: str) -> None:
    with pytest.raises(InvalidArgument):
        ServingSettings(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"message_bytes_max": 0}, {"window_bytes": 10}, {"window_bytes": 1 << 31}])
def test_sizes_are_sensible(wrong: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument):
        CallSettings(**wrong)
