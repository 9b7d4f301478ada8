"""All watches of one store on one stream.

A watch is level-triggered: it says "read again", not what changed. That makes breaks easy to survive. After a new
stream is open every watch is created anew, from the present on, and once etcd has confirmed that, its owner is woken:
what changed before the confirmation will be read now, what changes after it will be told. No revision has to be
remembered, and none can have been compacted away meanwhile.

etcd confirms creations in the order in which they were asked for; that is how answers find their watch.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import field

from quire.errors import QuireError, Refused, StoreClosed
from quire.metadata.driver import Target
from quire.metadata.drivers._etcd_errors import unavailable
from quire.metadata.drivers._etcd_keys import is_direct_child, key_of, range_below
from quire.metadata.drivers._etcd_rpc import WATCH, EtcdClient, Stream
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.values import dataclass

Span = tuple[bytes, bytes]  # [start, end); an empty end stands for the one key at the start.


@dataclass(eq=False, slots=True)
class _Watch:
    path: str
    target: Target
    notify: Callable[[], None]
    established: asyncio.Future[None]
    unconfirmed: int = 0  # Spans that the present stream has yet to confirm.
    ended: bool = False
    spans: list[Span] = field(init=False)

    def __post_init__(self) -> None:
        self.spans = [(key_of(self.path), b"")]
        if self.target is Target.CHILDREN:
            self.spans.append(range_below(self.path))

    def concerns(self, event: pb.Event) -> bool:
        if self.target is Target.NODE:
            return True
        rewritten = event.type == pb.Event.PUT and event.kv.version > 1
        return not rewritten and (event.kv.key == key_of(self.path) or is_direct_child(self.path, event.kv.key))


class _Line:
    """One stream, what is to be sent on it, and which watch each answer belongs to."""

    def __init__(self, stream: Stream[pb.WatchRequest, pb.WatchResponse]) -> None:
        self.stream = stream
        self._outbox: deque[pb.WatchRequest] = deque()
        self._outbox_filled = asyncio.Event()
        self._asked: deque[tuple[_Watch, Span]] = deque()
        self._watching: dict[int, tuple[_Watch, Span]] = {}
        self.stood = False  # Whether etcd has confirmed anything on it.

    def create(self, watch: _Watch) -> None:
        for span in watch.spans:
            self._ask(watch, span)

    def _ask(self, watch: _Watch, span: Span) -> None:
        watch.unconfirmed += 1
        self._asked.append((watch, span))
        start, end = span
        self._post(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=start, range_end=end)))

    def cancel(self, watch: _Watch) -> None:
        for watch_id, (owner, _) in tuple(self._watching.items()):
            if owner is watch:
                self._cancel(watch_id)

    def _cancel(self, watch_id: int) -> None:
        self._watching.pop(watch_id, None)
        self._post(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id)))

    def _post(self, request: pb.WatchRequest) -> None:
        self._outbox.append(request)
        self._outbox_filled.set()

    async def send_all(self) -> None:
        while True:
            while self._outbox:
                await self.stream.send(self._outbox.popleft())
            self._outbox_filled.clear()
            await self._outbox_filled.wait()

    async def receive_all(self) -> None:
        while True:
            self._on_answer(await self.stream.receive())

    def _on_answer(self, answer: pb.WatchResponse) -> None:
        if answer.created:
            self._on_created(answer, *self._asked.popleft())
            return
        watch, span = self._watching.get(answer.watch_id, (None, None))
        if watch is None or span is None:
            return  # It was cancelled, and this was under way before.
        if answer.canceled:  # The server's history no longer reached back to what this watch has yet to be told.
            del self._watching[answer.watch_id]
            self._ask(watch, span)
        elif any(watch.concerns(event) for event in answer.events):
            watch.notify()

    def _on_created(self, answer: pb.WatchResponse, watch: _Watch, span: Span) -> None:
        if answer.canceled:
            refusal = Refused(f"etcd refused to watch {watch.path!r}: {answer.cancel_reason}", path=watch.path)
            if not watch.established.done():
                watch.established.set_exception(refusal)
            elif not watch.ended:
                raise refusal  # Its owner has been promised a watch: break the stream and try again.
            return
        self.stood = True
        self._watching[answer.watch_id] = (watch, span)
        if watch.ended:
            self._cancel(answer.watch_id)
            return
        watch.unconfirmed -= 1
        if watch.unconfirmed == 0:
            if watch.established.done():
                watch.notify()
            else:
                watch.established.set_result(None)


class EtcdWatches:
    """The watches of one store handle. `run` serves them, as a task of the caller's."""

    def __init__(self, client: EtcdClient) -> None:
        self._client = client
        self._watches: dict[_Watch, None] = {}
        self._needed = asyncio.Event()
        self._line: _Line | None = None
        self._failures = 0  # Since a line last stood.
        self._trouble: BaseException | None = None  # Why the last line broke.

    async def add(self, path: str, target: Target, notify: Callable[[], None]) -> Callable[[], None]:
        """Begin to watch; returns, once etcd has confirmed it, the function that ends the watch."""
        deadline = self._client.deadline()
        watch = _Watch(path, target, notify, asyncio.get_running_loop().create_future())
        self._watches[watch] = None
        self._needed.set()
        if self._line is not None:
            self._line.create(watch)

        def stop() -> None:
            watch.ended = True
            if watch in self._watches:
                del self._watches[watch]
                if self._line is not None:
                    self._line.cancel(watch)

        try:
            async with asyncio.timeout(self._client.left(deadline)):
                await watch.established
        except TimeoutError as error:
            stop()
            reason = f": {self._trouble}" if self._trouble else ""
            raise unavailable(self._client.servers, f"the watch of {path!r} was not confirmed{reason}") from error
        except BaseException:
            stop()
            raise
        return stop

    async def run(self) -> None:
        """Keep a stream open while there is anything to watch."""
        while True:
            await self._needed.wait()
            try:
                await self._serve()
            except* QuireError as broken:
                self._trouble = _first(broken)
            await self._client.pause(self._failures)
            self._failures += 1

    async def _serve(self) -> None:
        stream = await self._client.open_stream(WATCH, deadline=self._client.deadline())
        line = self._line = _Line(stream)
        try:
            for watch in self._watches:
                watch.unconfirmed = 0
                line.create(watch)
            async with asyncio.TaskGroup() as group:
                group.create_task(line.send_all(), name="etcd watch requests")
                group.create_task(line.receive_all(), name="etcd watch events")
        finally:
            self._line = None
            stream.close()
            if line.stood:
                self._failures = 0

    def close(self) -> None:
        """No watch will be confirmed any more. Call it when `run` has ended."""
        for watch in self._watches:
            if not watch.established.done():
                watch.established.set_exception(StoreClosed("the store was closed during this call"))


def _first(group: BaseException) -> BaseException:
    """The first single error in a group of groups."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
