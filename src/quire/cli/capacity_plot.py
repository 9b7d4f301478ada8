"""How full each bookie's disk will be, day by day, as a picture. Needs matplotlib: the extra `plot`."""

from pathlib import Path
from typing import Final

from quire.errors import InvalidArgument
from quire.protocol.capacity import Projection

_POINTS: Final = 200
_DAYS_MIN: Final = 30.0
_DAYS_MAX: Final = 365.0


def draw(path: Path, projection: Projection) -> None:
    """Write the picture, in the format that the name ends in. Raises `InvalidArgument` if that cannot be, also without
    matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise InvalidArgument(
            "drawing needs matplotlib", hint="Install it: pip install 'quirelog[plot]'. --json has the same figures."
        ) from error
    figure = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    days = _horizon(projection)
    for space in projection.bookies:
        points = [days * step / _POINTS for step in range(_POINTS + 1)]
        used = [space.total_bytes - space.free_bytes + projection.used_bytes(space.bookie, day) for day in points]
        shares = [100 * max(0.0, min(1.0, each / max(1, space.total_bytes))) for each in used]
        axes.plot(points, shares, label=space.bookie)
    axes.set(xlabel="days from now", ylabel="disk in use, %", ylim=(0, 100), xlim=(0, days))
    axes.grid(alpha=0.3)
    if projection.bookies:
        axes.legend(loc="lower right")
    try:
        figure.savefig(path)
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _horizon(projection: Projection) -> float:
    """Far enough to see the first disk fill up, and a little more."""
    found = [days for space in projection.bookies if (days := projection.days_to_full(space)) is not None]
    return min(_DAYS_MAX, max(_DAYS_MIN, *(1.25 * days for days in found))) if found else _DAYS_MIN
