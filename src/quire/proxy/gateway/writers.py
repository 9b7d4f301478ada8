"""The writers of a gateway: one for each stream that is written through it, shared by all requests.

Opening a writer takes a lock and begins a segment, so it is done once, by whoever comes first, and undone when nobody
has written for a while. Each writer lives in a task of its own, since whoever opened it may be gone long before.

Invariants:
  AcceptedGoesOn   an append that was begun goes on to its end, also if its client leaves or does not wait any longer.
  OneWriter        of each stream at most one writer is open, or being opened, or being closed.
  FailedIsGone     a writer that failed is given up, so that the next append opens another.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from quire.errors import (
    AppendOutcomeUnknown,
    CallerMistake,
    HandleClosed,
    OverCapacity,
    ProxyDraining,
    QuireError,
    StreamSealed,
    StreamUnavailable,
)
from quire.proxy.gateway.clients import StreamClient, Writer
from quire.proxy.gateway.problems import RETRY_AFTER_MS
from quire.proxy.gateway.settings import GatewaySettings
from quire.telemetry.events import logger
from quire.types import DLSN

T = TypeVar("T")

_REOPENINGS_MAX: Final = 3
_log = logger("proxy.gateway")


class _Held:
    """One writer, in a task: being opened, open, or being closed."""

    def __init__(self, client: StreamClient, stream: str, lock_timeout_s: float) -> None:
        self.stream = stream
        self.users = 0
        self.idle_since_s = 0.0
        self.is_closing = False
        self._closing = asyncio.Event()
        self.opened: asyncio.Future[Writer] = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(self._hold(client, lock_timeout_s), name=f"gateway writer of {stream}")

    async def _hold(self, client: StreamClient, lock_timeout_s: float) -> None:
        try:
            async with client.open_writer(self.stream, lock_timeout_s=lock_timeout_s) as writer:
                self.opened.set_result(writer)
                await self._closing.wait()
        except Exception as error:
            if not self.opened.done():
                self.opened.set_exception(error)
                self.opened.exception()  # Nobody may be left to look at it.
            elif isinstance(error, QuireError):
                _log.warning("gateway.writer_not_closed", stream=self.stream, error=str(error))
            else:
                raise
        finally:
            self.is_closing = True
            if not self.opened.done():
                self.opened.cancel()

    def close(self) -> None:
        """Let go of the stream once all that was appended is answered."""
        self.is_closing = True
        self._closing.set()


class SharedWriters:
    """All writers of one namespace that the gateway has open."""

    def __init__(self, client: StreamClient, settings: GatewaySettings) -> None:
        self._client, self._settings = client, settings
        self._held: dict[str, _Held] = {}
        self._barred: set[str] = set()
        self._accepted: set[asyncio.Task[Any]] = set()
        self._sweeping: asyncio.Task[None] | None = None
        self._is_open = True

    @property
    def streams(self) -> list[str]:
        """Those that have a writer here."""
        return list(self._held)

    # --- Writing

    async def append(self, stream: str, payloads: Sequence[bytes], txids: Sequence[int] | None) -> Sequence[DLSN]:
        """Raises what opening a writer and appending raise, and `AppendOutcomeUnknown` when time is up."""

        async def append(writer: Writer) -> Sequence[DLSN]:
            return await writer.append_many(payloads, txids=txids)

        return await self.to_the_end(stream, self._with_writer(stream, append))

    async def to_the_end(self, stream: str, appending: Coroutine[Any, Any, T]) -> T:
        """What appending brings. It goes on if we are cancelled, or time is up: then raises `AppendOutcomeUnknown`."""
        accepted = asyncio.create_task(appending, name=f"append to {stream}")
        self._accepted.add(accepted)
        accepted.add_done_callback(self._ended)
        timeout_s = self._settings.append_timeout_s
        done, _ = await asyncio.wait([accepted], timeout=timeout_s)  # Which leaves it alone, also if we are cancelled.
        if not done:
            raise AppendOutcomeUnknown(
                f"stream {stream!r} has not answered within {timeout_s:g} s",
                hint="Read the end of the stream to see whether the records are there.",
                stream=stream,
            )
        return accepted.result()

    def _ended(self, accepted: asyncio.Task[Any]) -> None:
        self._accepted.discard(accepted)
        if not accepted.cancelled():
            accepted.exception()  # Whoever waited for it may have left.

    async def acquire(self, stream: str) -> None:
        """Have the writer open. Raises what opening it raises."""

        async def nothing(_: Writer) -> None: ...

        await self._with_writer(stream, nothing)

    async def seal(self, stream: str) -> bool:
        """End a stream whose writer is here; fine if it has ended. False if it is not here."""
        if stream not in self._held:
            return False
        try:
            await self._with_writer(stream, lambda writer: writer.seal())
        except StreamSealed:
            pass  # By somebody else, which is as good.
        await self.let_go(stream)
        return True

    async def _with_writer(self, stream: str, use: Callable[[Writer], Awaitable[T]]) -> T:
        for attempt in range(_REOPENINGS_MAX):
            held = await self._hold(stream)
            held.users += 1
            try:
                return await use(await asyncio.shield(held.opened))
            except HandleClosed:
                held.close()  # It was closed under us, which the next one is not; nothing was sent.
                if attempt == _REOPENINGS_MAX - 1:
                    raise
            except (CallerMistake, OverCapacity):
                raise  # The writer is as good as before.
            except BaseException:
                held.close()
                raise
            finally:
                held.users -= 1
                held.idle_since_s = asyncio.get_running_loop().time()
        raise AssertionError("unreachable")

    # --- Opening

    async def _hold(self, stream: str) -> _Held:
        while True:
            if not self._is_open:
                raise ProxyDraining("the gateway is being stopped")
            if stream in self._barred:
                raise StreamUnavailable(
                    f"stream {stream!r} is being deleted", stream=stream, retry_after_ms=RETRY_AFTER_MS
                )
            held = self._held.get(stream)
            if held is not None and not held.is_closing:
                return held
            if held is not None:
                await self._closed(held)
            elif len(self._held) >= self._settings.writers_max:
                await self._make_room()
            else:
                return self._open(stream)

    def _open(self, stream: str) -> _Held:
        held = self._held[stream] = _Held(self._client, stream, self._settings.lock_timeout_s)
        held.idle_since_s = asyncio.get_running_loop().time()
        held.task.add_done_callback(lambda _: self._forget(held))
        if self._sweeping is None:
            self._sweeping = asyncio.create_task(self._sweep(), name="idle writers of the gateway")
        return held

    def _forget(self, held: _Held) -> None:
        if self._held.get(held.stream) is held:
            del self._held[held.stream]

    async def _make_room(self) -> None:
        idle = [held for held in self._held.values() if not held.users]
        if not idle:
            raise OverCapacity(
                f"{len(self._held)} streams are being written through this gateway, and it takes no more",
                retry_after_ms=RETRY_AFTER_MS,
            )
        await self._closed(min(idle, key=lambda held: held.idle_since_s))

    # --- Closing

    async def let_go(self, stream: str) -> None:
        """Close the stream's writer, if there is one, after what is under way: others may write it then."""
        held = self._held.get(stream)
        if held is not None:
            await self._closed(held)

    @asynccontextmanager
    async def without(self, stream: str) -> AsyncIterator[None]:
        """No writer of the stream is open here during the block: appends are refused until it ends."""
        if stream in self._barred:
            raise StreamUnavailable(f"stream {stream!r} is being deleted", stream=stream, retry_after_ms=RETRY_AFTER_MS)
        self._barred.add(stream)
        try:
            await self.let_go(stream)
            yield
        finally:
            self._barred.discard(stream)

    async def _closed(self, held: _Held) -> None:
        held.close()
        await asyncio.wait([held.task])

    async def _sweep(self) -> None:
        """Give back streams to which nothing was appended for a while."""
        loop, idle_s = asyncio.get_running_loop(), self._settings.writer_idle_s
        while True:
            await asyncio.sleep(idle_s / 4)
            for held in self._held.values():
                if not held.users and loop.time() - held.idle_since_s >= idle_s:
                    held.close()

    async def aclose(self) -> None:
        """Take nothing new, let appends end that are under way, for a while, and close all writers."""
        self._is_open = False
        if self._accepted:
            await asyncio.wait(list(self._accepted), timeout=self._settings.stop_timeout_s)
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        tasks = [held.task for held in self._held.values()]
        for held in list(self._held.values()):
            held.close()
        if tasks:
            await asyncio.wait(tasks)
