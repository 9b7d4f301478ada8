"""Where bookies stand: a map from bookie ids, or from hosts, to racks, kept by an operator in a file or in metadata.

    # racks.txt: one bookie a line, by id or by host; the rack is /rack or /region/rack
    10.0.0.1:3181   /east/r1
    storage-7       /west/r4

In the metadata store the same is one node with a JSON object: {"10.0.0.1:3181": "/east/r1", "storage-7": "/west/r4"}.

Invariants:
  WholeOrOld     a map is taken as a whole. One that cannot be read or does not parse changes nothing: the last good one
                 stays, the reason is told. Only at the start, when there is none yet, it is an error.
  OneDepth       all paths of a map, the default too, name a rack, or all name a region and a rack.
  NobodyNowhere  a bookie that the map does not name has the default rack.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import field
from types import MappingProxyType
from typing import Any, Final

from quire.codec.damage import reading, utf8
from quire.errors import InvalidArgument, NoSuchNode, QuireError, SessionExpired, StoreClosed, Unavailable
from quire.metadata import MetadataStore
from quire.protocol.placement import DEFAULT_RACK, DEFAULT_REGION, check_rack
from quire.runtime import Clock, Runtime, StrPath, read_file
from quire.telemetry.events import logger
from quire.types import BookieId
from quire.values import dataclass

_log = logger("ledger")

_RETRY_S: Final = 1.0  # Between tries to read a node whose store cannot be reached.
_HINT: Final = "Write one bookie a line: its id or host, a space, and its rack as /rack or /region/rack."


@dataclass(frozen=True, slots=True)
class RackMap:
    """Racks by bookie id or host. Raises `InvalidArgument` for paths that are no racks or differ in depth."""

    racks: Mapping[str, str] = field(default_factory=dict, hash=False)
    default: str = ""  # For bookies that are not named. Left empty, it is Apache's, with as many parts as the others.

    def __post_init__(self) -> None:
        depths = {check_rack(rack).count("/") for rack in self.racks.values()}
        default = self.default or (f"/{DEFAULT_REGION}{DEFAULT_RACK}" if depths == {2} else DEFAULT_RACK)
        if len(depths | {check_rack(default).count("/")}) > 1:
            raise InvalidArgument(
                f"some racks are in a region and others are not; the default is {default!r}",
                hint="Write /region/rack for all bookies, or /rack for all.",
                default=default,
            )
        object.__setattr__(self, "racks", MappingProxyType(dict(self.racks)))
        object.__setattr__(self, "default", default)

    def rack_of(self, bookie: BookieId, host: str | None = None) -> str:
        """The rack of a bookie: by its id, then by the host it listens on. An id `host:port` tells the host itself."""
        for name in (bookie, host, bookie.rpartition(":")[0]):
            if name and name in self.racks:
                return self.racks[name]
        return self.default

    def locations(
        self, bookies: Iterable[BookieId], hosts: Mapping[BookieId, str] | None = None
    ) -> dict[BookieId, str]:
        """The rack of each bookie, as `BookieView` wants it. `hosts` are those that are known."""
        return {bookie: self.rack_of(bookie, (hosts or {}).get(bookie)) for bookie in bookies}


def parse_rack_lines(text: str, *, name: str, default: str = "") -> RackMap:
    """The map in the text of a file. Raises `InvalidArgument` naming the file and the first line that is wrong."""
    racks: dict[str, str] = {}
    lines: dict[str, int] = {}  # Where each name was first.
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        where = f"line {number} of {name}"
        if len(words) != 2:
            raise InvalidArgument(f"{where} has {len(words)} words, not two", hint=_HINT, line=number)
        bookie, rack = words
        if bookie in racks:
            raise InvalidArgument(
                f"{where} names {bookie!r} again, after line {lines[bookie]}", hint="Remove one.", line=number
            )
        try:
            RackMap({"first": next(iter(racks.values()), rack), "this": rack}, default)
        except InvalidArgument as error:
            raise InvalidArgument(f"{where}: {error}", hint=error.hint, line=number) from error
        racks[bookie], lines[bookie] = rack, number
    return RackMap(racks, default)


def parse_rack_node(data: bytes, *, path: str, default: str = "") -> RackMap:
    """The map in a metadata node; an empty node is an empty map. Raises `DamagedMetadata` naming the node."""
    what = f"the rack map at {path!r}"
    with reading(what):
        try:
            found = json.loads(utf8(data, what) or "{}")
        except (ValueError, RecursionError) as error:
            raise InvalidArgument(f"not JSON: {error}", path=path) from error
        if not isinstance(found, dict) or not all(isinstance(rack, str) for rack in found.values()):
            raise InvalidArgument("not a JSON object of bookies and racks", path=path)
        return RackMap(found, default)


class LiveRacks:
    """A rack map that follows its source."""

    def __init__(self, current: RackMap, on_change: Callable[[RackMap], None]) -> None:
        self.current = current
        self.problem: str | None = None  # Why the newest state of the source is not the current one.
        self._on_change = on_change

    def _take(self, racks: RackMap) -> None:
        self.problem = None
        if racks != self.current:
            self.current = racks
            _log.info("racks.changed", bookies=len(racks.racks))
            self._on_change(racks)

    def _keep(self, error: QuireError) -> None:
        if self.problem != str(error):  # Told once, however often it is seen.
            self.problem = str(error)
            _log.warning("racks.unreadable", problem=self.problem)


@asynccontextmanager
async def racks_from_file(
    runtime: Runtime,
    path: StrPath,
    *,
    default: str = "",
    check_interval_s: float = 10.0,
    on_change: Callable[[RackMap], None] = lambda _: None,
) -> AsyncIterator[LiveRacks]:
    """Follow a file for the block. Raises `InvalidArgument` if it cannot be read, or does not parse, at the start.

    The file is read again every `check_interval_s` and compared: it is small, and its times tell less than its bytes.
    """

    async def load() -> RackMap:
        try:
            text = (await read_file(runtime.disk, path)).decode()
        except OSError as error:
            why = error.strerror or str(error)
            raise InvalidArgument(f"the rack map {path!s} cannot be read: {why}", path=str(path)) from error
        except UnicodeDecodeError as error:
            raise InvalidArgument(f"the rack map {path!s} is not UTF-8 text", path=str(path)) from error
        return parse_rack_lines(text, name=str(path), default=default)

    async def follow() -> None:
        while True:
            await runtime.clock.sleep(check_interval_s)
            try:
                racks._take(await load())
            except InvalidArgument as error:
                racks._keep(error)

    racks = LiveRacks(await load(), on_change)
    async with _running(follow()):
        yield racks


@asynccontextmanager
async def racks_from_metadata(
    store: MetadataStore,
    clock: Clock,
    path: str,
    *,
    default: str = "",
    on_change: Callable[[RackMap], None] = lambda _: None,
) -> AsyncIterator[LiveRacks]:
    """Follow a metadata node for the block. A node that is not there is an empty map.

    Raises `DamagedMetadata` if it does not parse at the start, and what the store raises.
    """

    async def load() -> RackMap:
        try:
            data = (await store.get(path)).data
        except NoSuchNode:
            data = b""
        return parse_rack_node(data, path=path, default=default)

    async def follow(wait_changed: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await wait_changed()
                while not await reload():
                    await clock.sleep(_RETRY_S)
            except StoreClosed:
                return

    async def reload() -> bool:
        """False if it has to be tried again, since no watch will tell when the store can be reached."""
        try:
            racks._take(await load())
        except StoreClosed:
            raise
        except QuireError as error:
            racks._keep(error)
            return not isinstance(error, Unavailable | SessionExpired)
        return True

    async with store.watch(path) as watch:
        racks = LiveRacks(await load(), on_change)
        async with _running(follow(watch.wait_changed)):
            yield racks


@asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run `work` beside the block. It ends with the block; a bug in it is raised there."""
    task = asyncio.create_task(work, name="rack map")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.result()
