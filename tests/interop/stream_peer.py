"""Apache's DistributedLog, driven from here: namespaces, the streams in them, their writers and their readers.

A namespace is opened with settings of Java's by name, since Java keeps them there. `Payloads` are written under their
numbers as txids, so that a record's txid alone tells which payload it must have.
"""

import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.tree import StreamPaths
from quire.types import DLSN, INITIAL_DLSN
from tests.interop.peer import JavaError, JavaPeer
from tests.interop.stream_facts import Found, JavaRecord, JavaSegment, dlsn_of
from tests.interop.stream_handles import FALSE_ALARMS, READ_WITHIN_S, JavaStreamWriter, JavaSyncWriter, JavaTail

RECORDS_MAX: Final = 1_000_000
FALSE_ALARMS_MAX: Final = 5

# The defaults of Java's that are changed: a look at segments should be a look at what is stored, and a writer should
# roll when it is told to. By default a namespace allows one of its writers to do so, and nobody else for a minute.
_DEFAULTS: Final = {"logSegmentCacheEnabled": False, "logSegmentRollingConcurrency": 0}

# Each call of a writer becomes an entry, and is visible at once.
PROMPT: Final = {"writerOutputBufferSize": 0, "enableImmediateFlush": True}


@dataclass(frozen=True, slots=True)
class NamespaceSite:
    """A place for one namespace: a node of its own, on the server that also holds the metadata of its ledgers."""

    address: str
    path: str
    ledgers: str  # The cluster, as our ledger client opens it.

    @property
    def uri(self) -> str:
        return f"distributedlog://{self.address}{self.path}"

    @property
    def binding(self) -> NamespaceBinding:
        """What a binding without special wishes should say."""
        return NamespaceBinding(
            bk_servers=self.address,
            ledgers_path=urlsplit(self.ledgers).path,
            bk_servers_for_reader=self.address,
            dl_servers_for_writer=self.address,
            dl_servers_for_reader=self.address,
        )

    def paths(self, stream: str) -> StreamPaths:
        return StreamPaths(self.path, stream)


class JavaStream:
    """One stream of a namespace, which need not exist."""

    def __init__(self, peer: JavaPeer, namespace: int, name: str) -> None:
        self._peer, self._namespace, self.name = peer, namespace, name

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(command, namespace=self._namespace, stream=self.name, **arguments)

    # --- Writing

    async def open_writer(self) -> JavaStreamWriter:
        """A writer that is neither closed nor aborted by itself."""
        return JavaStreamWriter(self._peer, await self._call("stream_writer.open"))

    @asynccontextmanager
    async def writer(self) -> AsyncIterator[JavaStreamWriter]:
        """A writer that completes its segment at the end of the block, and leaves it as it is after an error."""
        writer = await self.open_writer()
        try:
            yield writer
        except BaseException:
            await writer.abort()
            raise
        await writer.close()

    async def open_sync_writer(self) -> JavaSyncWriter:
        return JavaSyncWriter(self._peer, await self._call("sync_writer.open"))

    # --- Reading

    async def read(self, start: DLSN | int = INITIAL_DLSN, *, count_max: int = RECORDS_MAX) -> Found:
        """What is visible now from a DLSN or a txid on, by an asynchronous reader."""
        within_ms = round(READ_WITHIN_S * 1_000)
        return await self._read("stream.read", start, count_max=count_max, within_ms=within_ms)

    async def read_all(self, start: DLSN | int = INITIAL_DLSN) -> list[JavaRecord]:
        return (await self.read(start)).records

    async def read_sync(self, start: DLSN | int = INITIAL_DLSN, *, count_max: int = RECORDS_MAX) -> Found:
        """The same by a synchronous reader. From a DLSN it gives the whole entry that the DLSN is in."""
        return await self._read("stream.read_sync", start, count_max=count_max)

    async def _read(self, command: str, start: DLSN | int, **arguments: int) -> Found:
        for _ in range(FALSE_ALARMS_MAX):
            try:
                return Found.of(await self._call(command, **{"from": start}, **arguments))
            except JavaError as error:
                if error.name not in FALSE_ALARMS:
                    raise
        raise AssertionError(f"{FALSE_ALARMS_MAX} readers of {self.name} failed with false alarms")

    @asynccontextmanager
    async def tail(
        self, start: DLSN | int | None = INITIAL_DLSN, *, locked: bool = False, subscriber: str | None = None
    ) -> AsyncIterator[JavaTail]:
        """Follow the stream; with `locked`, as the only one who does so, or the only one for this subscriber.

        Without a start, a subscriber's reader begins where the subscriber committed last.
        """

        async def open_at(place: DLSN | None) -> int:
            where = start if place is None else place
            number: int = await self._call("tail.start", **{"from": where}, locked=locked, subscriber=subscriber)
            return number

        tail = JavaTail(self._peer, await open_at(None), open_at=open_at)
        try:
            yield tail
        finally:
            await tail.stop()

    # --- The stream as a whole

    async def segments(self) -> list[JavaSegment]:
        return [JavaSegment.of(facts) for facts in await self._call("stream.segments")]

    async def first_dlsn(self) -> DLSN:
        return dlsn_of(await self._call("stream.first_dlsn"))

    async def last_dlsn(self) -> DLSN:
        return dlsn_of(await self._call("stream.last_dlsn"))

    async def first_txid(self) -> int:
        txid: int = await self._call("stream.first_txid")
        return txid

    async def last_txid(self) -> int:
        txid: int = await self._call("stream.last_txid")
        return txid

    async def find(self, txid: int) -> DLSN:
        """Where a reader from this txid begins."""
        return dlsn_of(await self._call("stream.find", txid=txid))

    async def count(self, start: DLSN = INITIAL_DLSN) -> int:
        count: int = await self._call("stream.count", **{"from": start})
        return count

    async def has_end(self) -> bool:
        has_end: bool = await self._call("stream.has_end")
        return has_end

    async def recover(self) -> None:
        """Complete what a writer left in progress, as the next writer would."""
        await self._call("stream.recover")

    async def purge(self, min_txid: int) -> None:
        """Delete segments that have only lower txids."""
        await self._call("stream.purge", min_txid=min_txid)

    async def subscriptions(self) -> dict[str, DLSN]:
        found = await self._call("stream.subscriptions")
        return {subscriber: dlsn_of(place) for subscriber, place in found.items()}

    async def subscribe(self, subscriber: str, position: DLSN) -> None:
        """Commit a position for a subscriber."""
        await self._call("stream.subscribe", subscriber=subscriber, dlsn=position)

    async def unsubscribe(self, subscriber: str) -> None:
        await self._call("stream.unsubscribe", subscriber=subscriber)


class JavaNamespace:
    """A namespace that Java has open with certain settings, in ZooKeeper sessions of its own."""

    def __init__(self, peer: JavaPeer, number: int) -> None:
        self._peer, self._number = peer, number

    async def _call(self, command: str, **arguments: Any) -> Any:
        return await self._peer.call(f"namespace.{command}", namespace=self._number, **arguments)

    def stream(self, name: str) -> JavaStream:
        return JavaStream(self._peer, self._number, name)

    async def create(self, stream: str) -> JavaStream:
        await self._call("create", stream=stream)
        return self.stream(stream)

    async def delete(self, stream: str) -> None:
        await self._call("delete", stream=stream)

    async def rename(self, stream: str, *, to: str) -> None:
        await self._call("rename", stream=stream, name=to)

    async def exists(self, stream: str) -> bool:
        exists: bool = await self._call("exists", stream=stream)
        return exists

    async def list(self) -> list[str]:
        names: list[str] = await self._call("list")
        return names

    async def close(self) -> None:
        """Writers that are still open lose their locks and leave their segments in progress."""
        await self._call("close")


OpenNamespace = Callable[..., Awaitable[JavaNamespace]]


async def bind(peer: JavaPeer, site: NamespaceSite, *options: str) -> bytes:
    """Bind a new namespace by Apache's command line. The bytes of its node."""
    words = ["bind", "-l", site.binding.ledgers_path, "-s", site.binding.bk_servers, "-c", "-f", *options, site.uri]
    await admin(peer, *words)
    return await binding_bytes(peer, site)


async def unbind(peer: JavaPeer, site: NamespaceSite) -> None:
    await admin(peer, "unbind", "-f", site.uri)


async def admin(peer: JavaPeer, *words: str) -> None:
    code = await peer.call("namespace.admin", words=words)
    assert code == 0, f"`dlog admin {' '.join(words)}` ended with {code}; see {peer.log}"


async def binding_bytes(peer: JavaPeer, site: NamespaceSite) -> bytes:
    return base64.b64decode(await peer.call("namespace.binding", uri=site.uri))


async def mortal_namespace(
    peer: JavaPeer, site: NamespaceSite, *, client_id: str | None = None, region: int = 0, **settings: object
) -> JavaNamespace:
    """A namespace that stays open as long as its process. Settings are Java's, by name."""
    number = await peer.call(
        "namespace.open", uri=site.uri, client_id=client_id, region=region, settings=_texts(_DEFAULTS | settings)
    )
    return JavaNamespace(peer, number)


@asynccontextmanager
async def connect_namespace(peer: JavaPeer, site: NamespaceSite, **settings: Any) -> AsyncIterator[JavaNamespace]:
    namespace = await mortal_namespace(peer, site, **settings)
    try:
        yield namespace
    finally:
        await namespace.close()


def _texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Java knows `true` and `false`."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
