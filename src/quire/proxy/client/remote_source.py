"""The entries of a stream from a place on, from whichever read proxy gives them.

A read proxy is only a way to the stream: if it goes, or falls silent, another one goes on at the same place. Which one
is asked first does not matter for what is read, only for what it has ready, so all clients ask alike.

Invariants:
  InOrder        entries come in the order of the stream, each once, however many proxies they come from.
  LockEndsIt     an exclusive reader does not go on elsewhere: somebody else may read by then.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from quire.codec.entry import Entry
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import DamagedEntry, LockLost, ProxyOutcomeUnknown, ProxyUnreachable, QuireError
from quire.protocol.redirects import Advice, Route
from quire.proxy.client.failures import failure_of
from quire.proxy.client.hosts import Hosts
from quire.proxy.client.places import position_message
from quire.proxy.client.requests import Requests, nobody_there
from quire.proxy.client.settings import ProxyClientSettings
from quire.rpc.serving.methods import READ
from quire.rpc.serving.results import dlsn_of
from quire.rpc.serving.transport import Transport
from quire.stream.damage import report_skipped
from quire.stream.entry_source import RUN_BYTES, Run
from quire.stream.metrics import StreamMetrics
from quire.stream.settings import StreamSettings
from quire.stream.start import Start
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId

_NO_LEDGER: Final = LedgerId(0)
_NO_LAC: Final = EntryId(-1)


class RemoteLock:
    """The lock that a read proxy holds for us, as long as our call to it lasts."""

    def __init__(self) -> None:
        self._lost = asyncio.Event()

    @property
    def lost(self) -> bool:
        """Whether the call has ended."""
        return self._lost.is_set()

    def lose(self) -> None:
        self._lost.set()

    async def wait_lost(self) -> None:
        await self._lost.wait()


class RemoteSource:
    """All entries from `start` on. `runs` may be called once."""

    def __init__(
        self,
        transport: Transport,
        hosts: Hosts,
        requests: Requests,
        client: ProxyClientSettings,
        metrics: StreamMetrics,
        stream: str,
        settings: StreamSettings,
        *,
        start: Start,
        subscription: str | None,
        lock: RemoteLock | None,
        skip_truncated: bool,
        incarnation: str,
    ) -> None:
        """With `incarnation`, of that stream only."""
        self._transport, self._hosts, self._requests, self._client = transport, hosts, requests, client
        self._metrics, self._stream, self._settings = metrics, stream, settings
        self._start, self._subscription, self._skip_truncated = start, subscription, skip_truncated
        self._lock = lock
        self._frame_bytes = min(client.frame_bytes, max(1, settings.read_ahead_bytes_max // 4))
        # Of what may be ready at all, one message may be in our hands, and another one on its way.
        self.ready_bytes_max = max(1, settings.read_ahead_bytes_max - 2 * self._frame_bytes)
        self._at: DLSN | None = None  # Where reading goes on; None until a proxy has said where it begins.
        self._is_adrift = not isinstance(start, DLSN)  # Nobody asked for just that place.
        self._lssn = -1
        self._awaits_entry = False
        self._route: Route | None = None  # While a proxy is looked for.
        self._problem: QuireError | None = None  # What happened last.
        self.incarnation = incarnation  # Of the stream that we read: one that was made anew is another.
        self.opened: asyncio.Future[DLSN] = asyncio.get_running_loop().create_future()
        """Where reading begins, or why it does not."""
        self.address: str | None = None  # Of the proxy that we read from.
        self.segments = 0  # That entries came from.
        self.damaged_entries = 0  # That were skipped.

    @property
    def is_at_tail(self) -> bool:
        """Whether the proxy said that it has nothing more."""
        return self._awaits_entry

    def skip(self, place: DLSN, error: QuireError) -> None:
        """Report an entry that nobody will see."""
        self.damaged_entries += 1
        self._metrics.damaged_entries.add()
        report_skipped(self._stream, place, error)

    # --- From proxy to proxy

    async def runs(self) -> AsyncGenerator[Run]:
        """Ends when the stream is sealed and there is nothing more. Raises what reading raises, and `ProxyUnreachable`
        if no read proxy answers for long.
        """
        try:
            while True:
                error: QuireError | None = None
                self.address = await self._next_proxy()
                try:
                    async with aclosing(self._events(self.address)) as events:
                        async for event in events:
                            for run in self._runs_of(event):
                                yield run
                            if event.end_of_stream:
                                return
                    error = ProxyOutcomeUnknown(f"proxy {self.address} ended the call")
                except QuireError as raised:
                    error = raised
                self._on_failure(self.address, error)
        except QuireError as error:
            if not self.opened.done():
                self.opened.set_exception(error)
                self.opened.exception()  # Whoever opens the reader may have been cancelled.
            raise

    async def _events(self, address: str) -> AsyncGenerator[pb.ReadEvent]:
        """What one proxy sends. Raises `ProxyOutcomeUnknown` when it falls silent."""
        route = self._route
        attempt, tried = (1, ()) if route is None else (route.attempts, sorted(route.unreachable))
        channel = self._transport.channel(address)
        async with channel.stream(READ, self._request(), attempt=attempt, tried=tried) as events:
            patience_s = self._opening_s
            while True:
                try:
                    async with asyncio.timeout(patience_s) as limit:
                        event: Any = await anext(events, None)
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    raise ProxyOutcomeUnknown(f"proxy {address} said nothing for {patience_s:g} s") from error
                if event is None:
                    return
                patience_s = self._client.read_silence_s
                self._on_event(address, event)
                yield event

    @property
    def _opening_s(self) -> float:
        """How long a proxy may take for its first word: it looks for the place, and may have to wait for a lock."""
        patience_s = max(self._client.attempt_timeout_s, self._settings.call_timeout_s / 4)
        return patience_s + (0.0 if self._lock is None else self._settings.lock_timeout_s)

    def _request(self) -> pb.ReadRequest:
        at, is_first = self._at, self._at is None
        skips = self._skip_truncated or (self._is_adrift and not is_first)
        return pb.ReadRequest(
            namespace=self._hosts.namespace,
            stream=self._stream,
            start=position_message(self._start if at is None else at),
            subscription=(self._subscription or "") if is_first else "",  # Where it goes on, we know better by then.
            format=pb.ENTRIES,
            max_frame_bytes=self._frame_bytes,
            truncated=pb.SKIP if skips else pb.FAIL,
            idle_ping_ms=max(1, round(self._client.read_ping_s * 1000)),
            exclusive=self._lock is not None,
            lock_timeout_ms=max(1, round(self._settings.lock_timeout_s * 1000)),
            incarnation=self.incarnation,
        )

    async def _next_proxy(self) -> str:
        route = self._route = self._route or self._requests.route(self._settings.call_timeout_s)
        address = await self._requests.next_proxy(route, lambda: self._hosts.readers_of(self._stream))
        if address is None:
            raise self._given_up()
        return address

    def _on_failure(self, address: str, error: QuireError) -> None:
        """Return if another proxy may go on."""
        self._awaits_entry = False
        if self._lock is not None and self._at is not None:
            self._lock.lose()
            if isinstance(error, LockLost) or failure_of(error).advice is Advice.FINAL:
                raise error
            raise lock_lost(self._stream) from error
        if isinstance(error, DamagedEntry) and self._settings.skip_damaged and self._at is not None:
            self.skip(self._at, error)
            self._at = self._at.next_entry()
            return
        self._problem = error
        route = self._route = self._route or self._requests.route(self._settings.call_timeout_s)
        if not self._requests.on_failure(route, address, error, any_will_do=True):
            raise error

    def _given_up(self) -> QuireError:
        error = self._problem
        if error is None or isinstance(error, ProxyUnreachable | ProxyOutcomeUnknown):
            raised = nobody_there(READ, error)
            raised.__cause__ = error
            return raised
        return error

    # --- What a proxy says

    def _on_event(self, address: str, event: pb.ReadEvent) -> None:
        self._hosts.on_answer(address)
        if not event.HasField("opened"):
            self._route = None  # It gives us the stream: what comes later is another matter.
            return
        if self._at is None:
            self._at, self.incarnation = dlsn_of(event.opened.resolved), event.opened.incarnation
            self.opened.set_result(self._at)

    def _runs_of(self, event: pb.ReadEvent) -> list[Run]:
        runs: list[Run] = []
        entries: list[Entry] = []
        lssn, is_bare, size_bytes = -1, False, 0

        def end() -> None:
            after = DLSN(Lssn(lssn), EntryId(entries[-1].entry_id + 1), SlotId(0))
            runs.append(Run(Lssn(lssn), not is_bare, entries, size_bytes, after))

        for each in event.entries:
            data = each.data
            if entries and (each.lssn != lssn or each.is_bare != is_bare or size_bytes + len(data) > RUN_BYTES):
                end()
                entries, size_bytes = [], 0
            lssn, is_bare = each.lssn, each.is_bare
            entries.append(Entry(_NO_LEDGER, EntryId(each.entry_id), _NO_LAC, 0, data))
            size_bytes += len(data)
            if lssn != self._lssn:
                self._lssn = lssn
                self.segments += 1
        if entries:
            end()
        self._on_progress(event, runs)
        return runs

    def _on_progress(self, event: pb.ReadEvent, runs: list[Run]) -> None:
        """Note where reading goes on, and tell so if the runs do not."""
        at = runs[-1].after if runs else self._at
        if event.HasField("progress"):
            told = dlsn_of(event.progress.position)
            if at is None or told > at:
                at = told
                runs.append(Run(told.lssn, True, [], 0, told))
            self._awaits_entry = not event.entries and event.progress.mode == pb.TAIL
        elif runs:
            self._awaits_entry = False
        if runs:
            self._is_adrift = False
        self._at = at


def lock_lost(stream: str) -> LockLost:
    return LockLost(
        f"the read proxy that held the lock for the reader of stream {stream!r} is gone: another reader may go on",
        stream=stream,
    )
