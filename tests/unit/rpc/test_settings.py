"""Settings of a channel refuse what cannot work."""

import math

import pytest

from quire.errors import InvalidArgument
from quire.rpc import ChannelSettings


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf])
@pytest.mark.parametrize("name", ["connect_timeout_s", "request_timeout_s", "close_grace_s"])
def test_a_timeout_is_positive_and_finite(name: str, seconds: float) -> None:
    with pytest.raises(InvalidArgument):
        ChannelSettings(**{name: seconds})  # type: ignore[arg-type]


def test_a_channel_stops_being_writable_before_it_refuses() -> None:
    with pytest.raises(InvalidArgument):
        ChannelSettings(unsent_bytes_high=2000, unsent_bytes_max=1000)
