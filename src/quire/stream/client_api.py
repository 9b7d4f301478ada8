"""What a program has in its hands, whatever stands behind the URI: the types of a client and of its writers.

`quire.stream.namespace.Namespace` is such a client, for those who reach bookies themselves, and
`quire.proxy.client.client.ProxyClient`, for those who reach proxies. What each method does is told there. Readers are
`quire.stream.reader.StreamReader` in both.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, Unpack, runtime_checkable

from quire.metadata import ANY_VERSION, Version
from quire.runtime.opening import Opening
from quire.stream.info import StreamInfo
from quire.stream.reader import StreamReader
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.stream.start import Start, Txid
from quire.stream.statistics import WriterStatistics
from quire.types import DLSN


class Uri(Protocol):
    """Where a client's streams are."""

    @property
    def text(self) -> str:
        """As it was given."""
        ...


@runtime_checkable
class StreamWriter(Protocol):
    """A stream that is being written."""

    stream: str
    """Its name."""

    @property
    def last_txid(self) -> int: ...

    @property
    def is_closed(self) -> bool: ...

    def statistics(self) -> WriterStatistics: ...

    async def append(self, payload: bytes, *, txid: int | None = None) -> DLSN: ...

    async def append_many(self, payloads: Sequence[bytes], *, txids: Sequence[int] | None = None) -> Sequence[DLSN]: ...

    async def append_set(
        self, payloads: Sequence[bytes], *, txid: int | None = None, compression: str = "none"
    ) -> Sequence[DLSN]: ...

    async def flush(self) -> None: ...

    async def truncate(self, before: DLSN) -> int: ...

    async def seal(self) -> None: ...

    async def aclose(self, *, drain: bool = True) -> None: ...


@runtime_checkable
class Client(Protocol):
    """All streams of one namespace. `quire.connect` opens one."""

    @property
    def uri(self) -> Uri:
        """Where they are."""
        ...

    def settings_for(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamSettings: ...

    async def stream_exists(self, stream: str) -> bool: ...

    async def list_streams(self, prefix: str = "") -> list[str]: ...

    def scan_streams(self, prefix: str = "") -> AsyncIterator[str]: ...

    def watch_streams(self) -> AsyncIterator[frozenset[str]]: ...

    async def create_stream(self, stream: str) -> None: ...

    async def delete_stream(self, stream: str) -> None: ...

    async def rename_stream(self, stream: str, new_name: str) -> None: ...

    async def truncate_stream(self, stream: str, *, before: DLSN | Txid) -> DLSN: ...

    async def purge_stream(self, stream: str, *, before: Txid | None = None) -> int: ...

    async def seal_stream(self, stream: str) -> None: ...

    async def stream_info(self, stream: str, *, sizes: bool = False) -> StreamInfo: ...

    async def subscriptions(self, stream: str) -> dict[str, DLSN | None]: ...

    async def delete_subscription(self, stream: str, subscription: str) -> None: ...

    async def stream_metadata(self, stream: str) -> tuple[bytes, Version]: ...

    async def set_stream_metadata(self, stream: str, data: bytes, *, expected: Version = ANY_VERSION) -> None: ...

    def open_writer(self, stream: str, **overrides: Unpack[StreamOverrides]) -> Opening[StreamWriter]: ...

    def open_reader(
        self,
        stream: str,
        *,
        start: Start | str = "earliest",
        subscription: str | None = None,
        exclusive: bool = False,
        skip_truncated: bool = False,
        **overrides: Unpack[StreamOverrides],
    ) -> Opening[StreamReader]: ...

    async def close(self) -> None: ...
