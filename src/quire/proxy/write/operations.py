"""What clients ask of a stream: an operation waits for the stream to be served, is carried out, or is refused.

An operation is begun, or refused, without waiting, and in the order in which operations came: a stream's batches keep
their order however the event loop runs tasks.
"""

import asyncio
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from quire.errors import QuireError
from quire.proxy.write.serving import ServingStream

T = TypeVar("T")


class Operation(Protocol):
    """Something to be done with a stream that is served here."""

    stream: str
    size_bytes: int
    create_if_missing: bool
    tried: Sequence[str]
    """Proxies that the client could not reach."""

    def begin(self, serving: ServingStream) -> None: ...

    def refuse(self, error: QuireError) -> None:
        """Nothing was done, and nothing will be."""
        ...


class Use(Generic[T]):
    """A call of its own, which awaits the stream and then does what it likes with it."""

    size_bytes = 0

    def __init__(self, stream: str, *, create_if_missing: bool = False, tried: Sequence[str] = ()) -> None:
        self.stream, self.create_if_missing, self.tried = stream, create_if_missing, tried
        self.serving: asyncio.Future[ServingStream] = asyncio.get_running_loop().create_future()

    def begin(self, serving: ServingStream) -> None:
        if not self.serving.done():
            self.serving.set_result(serving)

    def refuse(self, error: QuireError) -> None:
        if not self.serving.done():
            self.serving.set_exception(error)
            self.serving.exception()  # Whoever was cancelled does not look.
