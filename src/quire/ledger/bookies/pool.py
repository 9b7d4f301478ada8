"""All connections of one ledger client to all bookies, and which bookies there are.

    pool.channel(bookie, 2)            an open channel, or None: at once, for every run of adds
    await pool.connect(bookie, 2, …)   the same, and if there is none, the connection that everybody waits for

Each bookie has up to two channels, made on demand: one speaks version 2, the other what only version 3 has. Behind each
is one task that connects, holds the channel, and lets go of it. Waiters only look on: to cancel one stops nothing.

A bookie's address is what it published, or else its id. It is looked up again after each failure to connect, each lost
connection and each new registration: a bookie may come back elsewhere, and another one may answer at its old address.
While the metadata store cannot be reached the last known address has to do, as have the last known lists.

Invariants:
  OneConnection    a bookie and version have at most one connection, made or being made.
  ClosedIsGone     no closed channel is handed out.
  TriedInTurn      after a failure a bookie is not tried again before its back-off is over, or it registers anew.
  NothingStays     when the block ends, so have all tasks and channels of the pool, and all who waited for one.
"""

import asyncio
import ssl
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final, Literal, Self, TypeAlias

from quire.codec.registration import Endpoint, legacy_service_info
from quire.errors import BookieUnavailable, DamagedMetadata, InvalidArgument, NoSuchNode, QuireError
from quire.ledger.bookies.health import BookieHealth, HealthSettings, Retries
from quire.metadata.bookies import BookieListing, Bookies
from quire.rpc import BookieChannel, ChannelSettings
from quire.runtime import Runtime
from quire.telemetry.events import logger
from quire.types import BookieId
from quire.values import dataclass

Address: TypeAlias = tuple[str, int]
Version: TypeAlias = Literal[2, 3]

_LOG = logger("ledger")

_CLOSED: Final = "the pool of connections was closed"


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """How a ledger client treats its connections."""

    channel: ChannelSettings = ChannelSettings()
    health: HealthSettings = HealthSettings()

    retry_s_min: float = 0.1
    """Shortest time until a bookie is tried again that could not be reached. It doubles with each failure."""

    retry_s_max: float = 5.0
    """Longest time until the next try: how long a bookie that is back may go unnoticed if it does not register anew."""

    lookup_timeout_s: float = 2.0
    """Longest wait for the metadata store to tell a bookie's address. Then the last known one is used."""

    def __post_init__(self) -> None:
        if not (0 < self.retry_s_min <= self.retry_s_max and self.lookup_timeout_s > 0):
            raise InvalidArgument("a pool waits longer than 0 s between tries, and at most as long as its maximum")


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """The state of a pool at one moment."""

    open_channels: int
    unsent_bytes: int
    failures: Mapping[BookieId, int]
    quarantined: frozenset[BookieId]


class BookiePool:
    """The connections to bookies while its block runs. For use within one event loop.

    `health` is for whoever talks to bookies: to report what came of it, and to ask for the order of reads. Failures to
    connect are reported by the pool itself, once each however many wait: their errors have the fact `connecting`.
    """

    def __init__(
        self, runtime: Runtime, bookies: Bookies, settings: PoolSettings, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self._runtime, self._clock, self._bookies, self._settings = runtime, runtime.clock, bookies, settings
        self._tls = tls
        self.health = BookieHealth(settings.health)
        self._listing: BookieListing | None = None
        self.listing_problem: QuireError | None = None  # Why nothing newer is known, if so.
        self._listing_news = asyncio.Event()
        self._on_listed: list[Callable[[], None]] = []
        self._addresses = _Addresses(bookies, settings.lookup_timeout_s)
        self._retries = Retries(runtime.rng, s_min=settings.retry_s_min, s_max=settings.retry_s_max)
        self._links: dict[int, dict[BookieId, _Link]] = {2: {}, 3: {}}
        self._tasks: dict[asyncio.Task[None], None] = {}  # In order: simulated runs must repeat.
        self._open = False

    async def __aenter__(self) -> Self:
        self._open = True
        self._spawn(self._follow(), name="follow bookies")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._open = False
        self._listing_news.set()
        for links in self._links.values():
            for link in tuple(links.values()):
                self._drop(link, _CLOSED)
        while self._tasks:
            await _end(tuple(self._tasks))

    # --- Which bookies there are --------------------------------------------------------------------------------

    @property
    def writable(self) -> frozenset[BookieId]:
        """Those that take new entries, as far as is known."""
        return frozenset() if self._listing is None else self._listing.writable

    @property
    def readonly(self) -> frozenset[BookieId]:
        """Those that only answer reads."""
        return frozenset() if self._listing is None else self._listing.readonly

    async def wait_listed(self) -> None:
        """Return once the bookies are known. However long the store is unavailable; raises what waiting cannot mend."""
        while self._listing is None:
            if not self._open:
                raise BookieUnavailable(_CLOSED)
            if self.listing_problem is not None and not self.listing_problem.retryable:
                raise self.listing_problem
            self._listing_news.clear()
            await self._listing_news.wait()

    def on_listed(self, callback: Callable[[], None]) -> None:
        """Have `callback` called after each listing, while the pool lives."""
        self._on_listed.append(callback)

    async def _follow(self) -> None:
        failures = 0
        while True:
            try:
                async with aclosing(self._bookies.follow()) as listings:
                    async for listing in listings:
                        failures, self.listing_problem = 0, None
                        self._on_listing(listing)
            except QuireError as error:  # What is known stays: bookies live on while the metadata store does not.
                failures += 1
                self.listing_problem = error
                if failures == 1:
                    _LOG.warning("bookies.listing_failed", error=str(error))
                self._listing_news.set()
            await self._clock.sleep(self._retries.delay_s(failures))

    def _on_listing(self, listing: BookieListing) -> None:
        before, now = (
            each.writable | each.readonly if each is not None else frozenset() for each in (self._listing, listing)
        )
        self._listing = listing
        self.health.on_listing(listing.writable, listing.readonly)
        for bookie in sorted(now - before):
            self._addresses.doubt(bookie)
            self._retries.forget(bookie)
            if any(bookie in links for links in self._links.values()):
                self._spawn(self._check_moved(bookie), name=f"where is bookie {bookie}")
        self._listing_news.set()
        for callback in self._on_listed:
            callback()

    async def _check_moved(self, bookie: BookieId) -> None:
        """Let go of channels to where a bookie was before: its old machine may never say that it is gone."""
        try:
            address = await self._addresses.find(bookie)
        except BookieUnavailable:
            return
        for links in self._links.values():
            link = links.get(bookie)
            if link is not None and link.address not in (None, address):
                self._drop(link, f"bookie {bookie} is at another address now")

    # --- Channels -----------------------------------------------------------------------------------------------

    def channel(self, bookie: BookieId, version: Version) -> BookieChannel | None:
        """The open channel, if there is one."""
        link = self._links[version].get(bookie)
        if link is None or link.channel is None:
            return None
        if link.channel.closed:
            self._on_lost(link)
            return None
        return link.channel

    async def connect(self, bookie: BookieId, version: Version, *, timeout_s: float) -> BookieChannel:
        """The open channel; if there is none, open one or wait for that which is being opened.

        Raises `BookieUnavailable`, at once during a back-off. The connection is made also if this caller gives up.
        """
        channel = self.channel(bookie, version)
        if channel is not None:
            return channel
        link = self._links[version].get(bookie) or self._begin(bookie, version)
        await asyncio.wait([link.opened], timeout=timeout_s)
        if not link.opened.done():
            self.health.on_slow(bookie, self._clock.monotonic())
            raise _unconnected(f"bookie {bookie} was not connected within {timeout_s:g} s", bookie)
        problem = link.opened.result()
        if problem is not None:
            raise BookieUnavailable(str(problem), hint=problem.hint, **problem.facts) from problem
        if link.channel is None or link.channel.closed:
            raise _unconnected(f"the new connection to bookie {bookie} broke at once", bookie)
        return link.channel

    async def close_bookie(self, bookie: BookieId) -> None:
        """Close the bookie's channels and give up connecting; forget where it was and that it failed."""
        links = [link for links in self._links.values() if (link := links.get(bookie)) is not None]
        for link in links:
            self._drop(link, f"the connections to bookie {bookie} were closed")
        self._addresses.forget(bookie)
        self._retries.forget(bookie)
        await _end([link.task for link in links])

    def statistics(self) -> PoolStatistics:
        channels = [link.channel for links in self._links.values() for link in links.values()]
        alive = [channel for channel in channels if channel is not None and not channel.closed]
        return PoolStatistics(
            open_channels=len(alive),
            unsent_bytes=sum(channel.unsent_bytes for channel in alive),
            failures=self.health.failures(),
            quarantined=self.health.quarantined(self._clock.monotonic()),
        )

    # --- The life of a link -------------------------------------------------------------------------------------

    def _begin(self, bookie: BookieId, version: Version) -> "_Link":
        if not self._open:
            raise _unconnected(_CLOSED, bookie)
        now = self._clock.monotonic()
        self._retries.check(bookie, now)
        link = _Link(bookie, version, now)
        self._links[version][bookie] = link
        link.task = self._spawn(self._live(link), name=f"bookie {bookie} version {version}")
        # Whatever ended it, a bug included, nobody waits for it any more.
        link.task.add_done_callback(lambda _: self._drop(link, f"the connection to bookie {bookie} was given up"))
        return link

    async def _live(self, link: "_Link") -> None:
        try:
            channel = await self._open_channel(link)
        except BookieUnavailable as error:
            self._on_unreachable(link, error)
            return
        async with channel:
            link.began_s = self._clock.monotonic()
            link.channel = channel
            link.opened.set_result(None)
            await channel.wait_closed()
        self._on_lost(link)

    async def _open_channel(self, link: "_Link") -> BookieChannel:
        host, port = link.address = await self._addresses.find(link.bookie)
        try:
            return await BookieChannel.connect(self._runtime, host, port, self._settings.channel, tls=self._tls)
        except ValueError as error:  # Text that cannot be looked up as a name is refused in Python, not as an OSError.
            raise BookieUnavailable(f"{host!r} is no address of bookie {link.bookie}", bookie=link.bookie) from error

    def _on_unreachable(self, link: "_Link", error: BookieUnavailable) -> None:
        if self._forget(link):
            now = self._clock.monotonic()
            self._addresses.doubt(link.bookie)
            self.health.on_error(link.bookie, error, now)
            link.opened.set_result(self._retries.on_failure(link.bookie, error, now, began_s=link.began_s))

    def _on_lost(self, link: "_Link") -> None:
        """The other side ended the connection. Whoever notices first is here first."""
        if self._forget(link):
            self._addresses.doubt(link.bookie)
            self._retries.on_lost(link.bookie, self._clock.monotonic(), made_s=link.began_s)

    def _drop(self, link: "_Link", why: str) -> None:
        """We end the connection, or the attempt to make one."""
        self._forget(link)
        if not link.opened.done():
            link.opened.set_result(_unconnected(why, link.bookie))
        link.task.cancel()

    def _forget(self, link: "_Link") -> bool:
        """Whether the link was still one of ours."""
        links = self._links[link.version]
        if links.get(link.bookie) is not link:
            return False
        del links[link.bookie]
        return True

    # --- Tasks --------------------------------------------------------------------------------------------------

    def _spawn(self, coro: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coro, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            message = "a task of the pool of connections failed"
            task.get_loop().call_exception_handler({"message": message, "exception": error, "task": task})


def _unconnected(problem: str, bookie: BookieId) -> BookieUnavailable:
    return BookieUnavailable(problem, bookie=bookie, connecting=True)


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for them. A channel takes `close_grace_s` to close; when we are cancelled, no longer."""
    for task in tasks:
        task.cancel()
    try:
        if tasks:
            await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise


class _Link:
    """One connection, from the decision to make it until it is gone. `task` does all of that."""

    __slots__ = ("address", "began_s", "bookie", "channel", "opened", "task", "version")

    task: asyncio.Task[None]

    def __init__(self, bookie: BookieId, version: Version, began_s: float) -> None:
        self.bookie, self.version = bookie, version
        self.began_s = began_s  # To connect; once there is a channel, when that was made.
        self.address: Address | None = None
        self.channel: BookieChannel | None = None
        # None for success. Never an exception: asyncio would complain if every waiter had gone.
        self.opened: asyncio.Future[BookieUnavailable | None] = asyncio.get_running_loop().create_future()


class _Addresses:
    """Where bookies listen: as published, remembered until in doubt."""

    def __init__(self, bookies: Bookies, lookup_timeout_s: float) -> None:
        self._bookies, self._lookup_timeout_s = bookies, lookup_timeout_s
        self._known: dict[BookieId, Address] = {}
        self._trusted: set[BookieId] = set()
        self._doubts = 0

    def doubt(self, bookie: BookieId) -> None:
        """Look the address up when it is needed next."""
        self._trusted.discard(bookie)
        self._doubts += 1  # What is being read now may be older than the doubt.

    def forget(self, bookie: BookieId) -> None:
        self.doubt(bookie)
        self._known.pop(bookie, None)

    async def find(self, bookie: BookieId) -> Address:
        """Raises `BookieUnavailable` if neither the store nor the id tells."""
        if bookie in self._trusted:
            return self._known[bookie]
        doubts = self._doubts
        endpoint: Endpoint | None = None
        problem: Exception | None = None
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                endpoint = (await self._bookies.service_info(bookie)).rpc_endpoint
        except NoSuchNode as error:  # It is down for certain: somebody else may be at its address by now.
            self._known.pop(bookie, None)
            problem = error
        except (QuireError, TimeoutError) as error:
            if bookie in self._known and not isinstance(error, DamagedMetadata):
                return self._known[bookie]
            problem = error
        address = _address_of(endpoint or _endpoint_in(bookie))
        if address is None:
            raise BookieUnavailable(
                f"no address of bookie {bookie} is known: {problem or 'it published none'}", bookie=bookie
            ) from problem
        if problem is None:
            self._known[bookie] = address
            if doubts == self._doubts:
                self._trusted.add(bookie)
        return address


def _endpoint_in(bookie: BookieId) -> Endpoint | None:
    """What an id of the form `host:port` says, as those of Apache's old bookies do."""
    try:
        return legacy_service_info(bookie).rpc_endpoint
    except DamagedMetadata:
        return None


def _address_of(endpoint: Endpoint | None) -> Address | None:
    if endpoint is None or not endpoint.host or not 0 < endpoint.port < 1 << 16:
        return None
    return endpoint.host, endpoint.port
