"""What the gateway needs of a client of streams: `quire.stream.namespace.Namespace` has it, and the client of proxies.

The gateway stands on these methods alone, so that it can run in a process of its own, beside a proxy, or over a log in
a folder. What only some clients can do is asked for by name: `deduplicating` and `owning` find it, or nothing.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, Unpack, cast

from quire.codec.stream.records import LogRecord
from quire.stream.info import StreamInfo
from quire.stream.settings import StreamOverrides
from quire.stream.start import Start, Txid
from quire.types import DLSN


class Writer(Protocol):
    """As `quire.stream.writer.StreamWriter`."""

    @property
    def last_txid(self) -> int: ...

    async def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> Sequence[DLSN]: ...

    async def seal(self) -> None: ...


class ReaderStatistics(Protocol):
    @property
    def at_tail(self) -> bool: ...


class Reader(Protocol):
    """As `quire.stream.reader.StreamReader`."""

    @property
    def position(self) -> DLSN: ...

    async def read_many(self, max_records: int, *, timeout_s: float = ...) -> list[LogRecord]: ...

    async def commit(self, position: DLSN | None = None, *, may_go_back: bool = False) -> DLSN: ...

    def statistics(self) -> ReaderStatistics: ...


class StreamClient(Protocol):
    """As `quire.stream.namespace.Namespace`, which says what each of these raises."""

    async def stream_exists(self, stream: str) -> bool: ...

    def scan_streams(self, prefix: str = "") -> AsyncIterator[str]: ...

    async def create_stream(self, stream: str) -> None: ...

    async def delete_stream(self, stream: str) -> None: ...

    async def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN: ...

    async def seal_stream(self, stream: str) -> None: ...

    async def stream_info(self, stream: str) -> StreamInfo: ...

    async def subscriptions(self, stream: str) -> Mapping[str, DLSN | None]: ...

    async def delete_subscription(self, stream: str, subscription: str) -> None: ...

    def open_writer(self, stream: str, **overrides: Unpack[StreamOverrides]) -> AbstractAsyncContextManager[Writer]: ...

    def open_reader(
        self,
        stream: str,
        *,
        start: Start | str = ...,
        subscription: str | None = None,
        skip_truncated: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> AbstractAsyncContextManager[Reader]: ...


# --- What only some can do


class Appended(Protocol):
    """What became of records that may have been sent before."""

    @property
    def dlsns(self) -> Sequence[DLSN]:
        """Their places, as far as they are known: of what was there before they may be forgotten."""
        ...

    @property
    def is_duplicate(self) -> bool:
        """Whether all of them were there before."""
        ...


class DeduplicatingClient(Protocol):
    """A client whose server remembers what it has of each producer."""

    async def append_once(
        self,
        stream: str,
        payloads: Sequence[bytes],
        *,
        producer: bytes,
        first_seq: int,
        txids: Sequence[int] | None = None,
    ) -> Appended:
        """Append what is not there yet of the records that this producer, of 16 bytes, counts from `first_seq` on.

        Raises `TxidOutOfOrder` if records before them are missing.
        """
        ...


class OwningClient(Protocol):
    """A client of proxies: somebody there owns each stream that is written."""

    async def heartbeat_stream(self, stream: str) -> str:
        """Have some proxy own the stream, and prove that it can be written. Returns the owner's host and port."""
        ...

    async def release_stream(self, stream: str) -> None:
        """Have the owner give it up."""
        ...

    async def stream_owner(self, stream: str) -> str | None:
        """Host and port of the proxy that owns the stream; None if none does."""
        ...


def deduplicating(client: StreamClient) -> DeduplicatingClient | None:
    return cast(DeduplicatingClient, client) if hasattr(client, "append_once") else None


def owning(client: StreamClient) -> OwningClient | None:
    needed = ("heartbeat_stream", "release_stream", "stream_owner")
    return cast(OwningClient, client) if all(hasattr(client, name) for name in needed) else None
