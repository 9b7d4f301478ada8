"""Calls of a proxy, counted by what became of them: a name for each call, and a code for each end.

A call with one answer is counted when it is answered, one with many when it ends: as OK if its handler was done, as
CANCELLED if its caller left, which is how most readers end. Handlers know nothing of this.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any, Self, TypeAlias, cast

from google.protobuf.message import Message

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import QuireError, StoreClosed
from quire.metadata import MetadataStore
from quire.metadata.driver import SessionEvent
from quire.rpc.serving.results import result_of
from quire.rpc.serving.transport import Caller, Handlers, StreamHandler, UnaryHandler
from quire.telemetry.metrics import Counter, Registry
from quire.telemetry.names import Declared

CANCELLED = "CANCELLED"
OnEnd: TypeAlias = Callable[[str, str], None]
"""Called with the name of a call and its code."""


def code_of(error: BaseException | None) -> str:
    """How an end is called in metrics."""
    if error is None:
        return "OK"
    if isinstance(error, QuireError):
        return pb.Code.Name(result_of(error).code)
    return pb.Code.Name(pb.INTERNAL) if isinstance(error, Exception) else CANCELLED


class RequestCounter:
    """One counter for each call and code that occurred."""

    def __init__(self, registry: Registry, declared: Declared) -> None:
        self._registry, self._declared = registry, declared
        self._counters: dict[tuple[str, str], Counter] = {}

    def __call__(self, rpc: str, code: str) -> None:
        counter = self._counters.get((rpc, code))
        if counter is None:
            counter = self._counters[rpc, code] = self._registry.counter(self._declared, rpc=rpc, code=code)
        counter.value += 1


def counted(handlers: Handlers, on_end: OnEnd) -> Handlers:
    """The same handlers; of each call `on_end` is told when it is over."""
    return {
        method: _many(method.name, cast(StreamHandler, handler), on_end)
        if method.server_streams
        else _one(method.name, cast(UnaryHandler, handler), on_end)
        for method, handler in handlers.items()
    }


def _one(rpc: str, handler: UnaryHandler, on_end: OnEnd) -> UnaryHandler:
    async def answer(request: Any, caller: Caller) -> Message:
        try:
            response = await handler(request, caller)
        except BaseException as error:
            on_end(rpc, code_of(error))
            raise
        on_end(rpc, code_of(None))
        return response

    return answer


def _many(rpc: str, handler: StreamHandler, on_end: OnEnd) -> StreamHandler:
    return lambda request, caller: _Counted(handler(request, caller), lambda code: on_end(rpc, code))


class _Counted:
    """The responses of one call."""

    def __init__(self, responses: AsyncIterator[Message | bytes], on_end: Callable[[str], None]) -> None:
        self._responses, self._on_end = responses, on_end
        self._is_over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message | bytes:
        try:
            return await anext(self._responses)
        except StopAsyncIteration:
            self._end(None)
            raise
        except BaseException as error:
            self._end(error)
            raise

    async def aclose(self) -> None:
        self._end(GeneratorExit())
        close = getattr(self._responses, "aclose", None)
        if close is not None:
            await close()

    def _end(self, error: BaseException | None) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end(code_of(error))


async def count_expiries(store: MetadataStore, counter: Counter) -> None:
    """Count the ends of a store's session, until it is closed."""
    with store.watch_session() as session:
        try:
            while True:
                if await session.wait_event() is SessionEvent.EXPIRED:
                    counter.add()
        except StoreClosed:
            pass
