"""`AsyncioClock`: the loop's own time, so a simulated loop makes it virtual."""

from quire.runtime import AsyncioClock
from quire.testing import run


def test_monotonic_time_is_the_loops() -> None:
    async def main() -> None:
        clock = AsyncioClock()
        start = clock.monotonic()
        await clock.sleep(7200)
        assert clock.monotonic() == start + 7200

    run(main(), seed=1)


def test_wall_time_is_in_milliseconds_of_this_century() -> None:
    year_2020_ms, year_2100_ms = 1_577_836_800_000, 4_102_444_800_000
    assert year_2020_ms < AsyncioClock().wall_ms() < year_2100_ms
