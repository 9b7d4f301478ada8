"""What a gateway counts, in the registry of whoever runs it. It counts by itself: a scrape only looks.

What each metric means is in `quire.telemetry.names`.
"""

from collections.abc import Mapping

from quire.proxy.gateway.admission import Admission
from quire.telemetry import names
from quire.telemetry.metrics import Registry


class AnswerCounts:
    """Answers by their status."""

    def __init__(self, registry: Registry | None) -> None:
        self._registry = registry
        self._counts: dict[int, int] = {}

    def count(self, status: int) -> None:
        if status not in self._counts and self._registry is not None:
            counter = self._registry.counter(names.GATEWAY_ANSWERS_TOTAL, status=str(status))
            counter.read = lambda: self._counts[status]
        self._counts[status] = self._counts.get(status, 0) + 1

    def by_status(self) -> dict[int, int]:
        return dict(sorted(self._counts.items()))


def show_admissions(registry: Registry, admissions: Mapping[str, Admission], bodies: Admission) -> None:
    """How much is under way, and how often there was too much."""

    def show(kind: str, admission: Admission) -> None:
        registry.counter(names.GATEWAY_REFUSED_TOTAL, kind=kind).read = lambda: admission.refused

    for kind, admission in admissions.items():
        registry.gauge(names.GATEWAY_UNDER_WAY, lambda each=admission: each.used, kind=kind)  # type: ignore[misc]
        show(kind, admission)
    registry.gauge(names.GATEWAY_BODY_BYTES, lambda: bodies.used)
    show("bodies", bodies)
