"""What the admin API of a proxy asks of the proxy."""

from collections.abc import Mapping
from typing import Any, Protocol

from quire.telemetry.metrics import Registry


class AdminSource(Protocol):
    """A proxy, as far as its admin API knows it."""

    @property
    def metrics(self) -> Registry: ...

    @property
    def not_ready(self) -> list[str]:
        """Why clients should go elsewhere; nothing if they should not."""
        ...

    def debug(self) -> Mapping[str, Any]:
        """What is going on, part by part."""
        ...

    def ask_to_drain(self) -> None:
        """Begin to stop in good order. Returns at once; fine if it has begun."""
        ...
