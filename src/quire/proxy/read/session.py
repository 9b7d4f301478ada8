"""`ReadSession`: several streams on one call, each as fast as its reader gives it credit.

The client starts a stream under an id of its own, starts it again elsewhere, gives it credit, stops it. Each stream
prepares one message, and the next when that was taken: however many streams there are, what waits is one message of
each.

Invariants:
  CreditIsKept    a message goes out only while there is credit; the last one may exceed it.
  NothingOld      after an id was started again, or stopped, nothing comes of what it was before.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, OverCapacity, QuireError
from quire.proxy.read.frames import session_frame
from quire.proxy.read.reading import open_reading
from quire.rpc.serving.results import failure_inside, result_of
from quire.telemetry.events import logger

if TYPE_CHECKING:
    from quire.proxy.read.service import ReadService

_log = logger("proxy.read")


class _Part:
    """One stream of a session."""

    def __init__(self, id: int, credit_bytes: int) -> None:
        self.id, self.credit_bytes = id, credit_bytes
        self.message: bytes | None = None  # That waits to be sent.
        self.is_over = False
        self.task: asyncio.Task[None] | None = None
        self._go = asyncio.Event()

    def nudge(self) -> None:
        self._go.set()

    async def may_go_on(self) -> None:
        """Return when the last message was taken and there is credit for another one."""
        while self.message is not None or self.credit_bytes <= 0:
            self._go.clear()
            await self._go.wait()


class Session:
    """One call."""

    def __init__(self, service: "ReadService") -> None:
        self._service = service
        self._parts: dict[int, _Part] = {}
        self._ready: dict[_Part, None] = {}  # Those with a message, in the order in which they had it.
        self._came = asyncio.Event()
        self._is_fed = False
        self._problem: Exception | None = None
        self._stopped: set[asyncio.Task[None]] = set()

    async def run(self, requests: AsyncIterator[pb.SessionRequest]) -> AsyncIterator[bytes]:
        feeding = asyncio.create_task(self._feed(requests), name="requests of a read session")
        try:
            while True:
                while self._ready:
                    part = next(iter(self._ready))
                    del self._ready[part]
                    message, part.message = part.message, None
                    if part.is_over and self._parts.get(part.id) is part:
                        del self._parts[part.id]
                    part.nudge()
                    if message is not None:
                        yield message
                if self._problem is not None:
                    raise self._problem
                if self._is_fed and not self._parts:
                    return
                self._came.clear()
                await self._came.wait()
        finally:
            tasks = [feeding, *self._stopped, *(part.task for part in self._parts.values() if part.task is not None)]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _feed(self, requests: AsyncIterator[pb.SessionRequest]) -> None:
        try:
            async for request in requests:
                self._take(request)
        except QuireError as error:
            self._problem = error
        finally:
            self._is_fed = True
            self._came.set()

    def _take(self, request: pb.SessionRequest) -> None:
        match request.WhichOneof("message"):
            case "start":
                self._start(request.start)
            case "credit":
                part = self._parts.get(request.credit.id)
                if part is not None:  # It may have ended while the credit was under way.
                    part.credit_bytes += request.credit.bytes
                    part.nudge()
            case "stop":
                self._stop(request.stop.id)
            case _:
                raise InvalidArgument("a message of a read session says nothing")

    def _start(self, start: pb.SessionStart) -> None:
        self._stop(start.id)
        if len(self._parts) >= self._service.settings.session_streams_max:
            raise OverCapacity(f"one session reads {len(self._parts)} streams at most", hint="Use another call.")
        part = self._parts[start.id] = _Part(start.id, start.credit_bytes)
        part.task = asyncio.create_task(self._read(part, start.request), name=f"stream {start.id} of a read session")

    def _stop(self, id: int) -> None:
        part = self._parts.pop(id, None)
        if part is None:
            return
        self._ready.pop(part, None)
        if part.task is not None:
            part.task.cancel()
            self._stopped.add(part.task)
            part.task.add_done_callback(self._stopped.discard)
        self._came.set()

    async def _read(self, part: _Part, request: pb.ReadRequest) -> None:
        ended = pb.Result(code=pb.OK)
        try:
            self._service.check_namespace(request.namespace)
            async with open_reading(self._service, request) as reading:
                while True:
                    await part.may_go_on()
                    message = await reading.next_message()
                    if message is None:
                        break
                    part.credit_bytes -= len(message)
                    self._offer(part, session_frame(part.id, message))
        except QuireError as error:
            ended = result_of(error)
        except Exception:
            _log.exception("session.failed", stream=request.stream)
            ended = failure_inside()
        while part.message is not None:
            part.credit_bytes = max(1, part.credit_bytes)
            await part.may_go_on()
        part.is_over = True
        self._offer(part, pb.SessionEvent(id=part.id, ended=ended).SerializeToString())

    def _offer(self, part: _Part, message: bytes) -> None:
        part.message = message
        self._ready[part] = None
        self._came.set()
