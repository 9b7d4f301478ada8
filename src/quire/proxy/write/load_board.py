"""What every write proxy has to do, as the balancer last saw it, for all of them to read.

    <namespace>/.server-load        {"h1:7400": 1048576.0, "h2:7400": 20480.0}

The node belongs to the balancer's session: when nobody looks any more, nothing is known, and streams are placed by the
ring alone. It is written only while the balancer's lock is held, which the store checks in the same transaction.
"""

import json
from collections.abc import Mapping
from typing import Final

from quire.errors import LockLost, NodeExists, NoSuchNode, SessionExpired, StoreClosed, Unavailable, VersionConflict
from quire.metadata import ANY_VERSION, MetadataStore
from quire.metadata.driver import Check, Create, Op, Set
from quire.metadata.paths import join
from quire.runtime import Clock

SERVER_LOAD: Final = ".server-load"
_RETRY_S: Final = 0.2


class LoadBoard:
    """The loads of one namespace's write proxies."""

    def __init__(self, store: MetadataStore, clock: Clock, namespace_path: str) -> None:
        self._store, self._clock, self._path = store, clock, join(namespace_path, SERVER_LOAD)
        self.loads: Mapping[str, float] = {}

    async def write(self, loads: Mapping[str, float], guard: Check) -> None:
        """Raises `LockLost` if the balancer is another one by now, and what the store raises."""
        data = json.dumps({proxy: round(load, 1) for proxy, load in sorted(loads.items())}).encode()
        writes: tuple[Op, ...] = (
            Set(self._path, data, expected=ANY_VERSION),
            Create(self._path, data, ephemeral=True),
        )
        problem: Exception | None = None
        for write in writes:
            try:
                await self._store.transaction(guard, write)
                return
            except NoSuchNode as error:
                problem = error
            except (NodeExists, VersionConflict) as error:
                problem = error
                break
        raise LockLost("somebody else is the balancer now", path=self._path) from problem

    async def follow(self) -> None:
        """Keep `loads` up to date. What was known last counts while the store cannot be reached."""
        while True:
            try:
                async with self._store.watch(self._path) as watch:
                    while True:
                        self.loads = await self._read()
                        await watch.wait_changed()
            except StoreClosed:
                return
            except (Unavailable, SessionExpired):
                await self._clock.sleep(_RETRY_S)

    async def _read(self) -> dict[str, float]:
        try:
            return _decoded((await self._store.get(self._path)).data)
        except NoSuchNode:
            return {}


def _decoded(data: bytes) -> dict[str, float]:
    """Others write here, too: what makes no sense is nothing."""
    try:
        found = json.loads(data)
        return {str(proxy): float(load) for proxy, load in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}
