"""A metadata driver whose calls meet the faults that a test plans."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, QuireError
from quire.metadata.driver import Children, Node, Op, SessionEvent, SessionId, Stat, Target, Written
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.metadata.settings import StoreSettings
from quire.runtime import real_runtime


class FlakyDriver:
    """A client of a tree in memory whose next calls meet the faults of a plan: `ok`, `lost`, `late` or `unavailable`.

    `lost` carries the write out and loses the answer. `late` loses the answer too, and keeps the write under way until
    `land`, or until the driver is asked to settle what is in doubt. Reads know only `ok` and `unavailable`.
    """

    def __init__(self, tree: MemoryTree) -> None:
        self._driver = MemoryDriver(tree, StoreSettings(), real_runtime())
        self.plan: list[str] = []
        self._late: list[Sequence[Op]] = []

    def _next(self) -> str:
        return self.plan.pop(0) if self.plan else "ok"

    @property
    def session(self) -> SessionId:
        return self._driver.session

    def _read_or_fail(self) -> None:
        if self._next() == "unavailable":
            raise MetadataUnavailable("injected")

    async def get(self, path: str) -> Node | None:
        self._read_or_fail()
        return await self._driver.get(path)

    async def stat(self, path: str) -> Stat | None:
        self._read_or_fail()
        return await self._driver.stat(path)

    async def children(self, path: str) -> Children | None:
        self._read_or_fail()
        return await self._driver.children(path)

    async def commit(self, ops: Sequence[Op]) -> list[Written | None]:
        fault = self._next()
        if fault == "unavailable":
            raise MetadataUnavailable("injected")
        if fault == "late":
            self._late.append(ops)
            raise MetadataOutcomeUnknown("injected")
        written = await self._driver.commit(ops)
        if fault == "lost":
            raise MetadataOutcomeUnknown("injected")
        return written

    async def land(self) -> None:
        """Carry out the writes that are still under way, as far as nothing stands against them now."""
        while self._late:
            with suppress(QuireError):
                await self._driver.commit(self._late.pop(0))

    async def sync(self) -> None:
        await self._driver.sync()

    async def settle(self) -> None:
        await self._driver.settle()
        self._late.clear()

    async def watch(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        return await self._driver.watch(path, target, notify)

    def listen(self, callback: Callable[[SessionEvent], None]) -> None:
        self._driver.listen(callback)

    async def aclose(self) -> None:
        await self._driver.aclose()
