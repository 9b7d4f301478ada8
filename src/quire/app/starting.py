"""Services wait for their metadata store when they start: the machines of a cluster come up in any order."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Final, TypeVar

from quire.errors import MetadataUnavailable
from quire.telemetry.events import Seldom, logger

T = TypeVar("T")

_RETRY_S: Final = 1.0
_log = logger("service")


async def when_reachable(
    stack: AsyncExitStack, open: Callable[[], AbstractAsyncContextManager[T]], stop: asyncio.Event
) -> T | None:
    """Enter what `open` gives, again and again while the metadata store cannot be reached. None once `stop` is set."""
    tell = Seldom(_log.warning, "metadata.awaited")
    loop = asyncio.get_running_loop()
    limit = asyncio.timeout(None)

    async def end_with_stop() -> None:
        await stop.wait()
        limit.reschedule(loop.time())

    stopping: asyncio.Task[None] | None = None
    try:
        async with limit:
            stopping = asyncio.create_task(end_with_stop(), name="stop waiting for the metadata store")
            while True:
                try:
                    return await stack.enter_async_context(open())
                except MetadataUnavailable as error:
                    tell(loop.time(), error=str(error), hint=error.hint)
                    await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        if not limit.expired():
            raise
        return None
    finally:
        if stopping is not None:
            stopping.cancel()
