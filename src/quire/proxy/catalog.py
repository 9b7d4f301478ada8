"""The list of streams, for clients of both kinds of proxies: what a namespace says and does, as calls.

Everything here is a matter of metadata, so any proxy can do it. But a stream that a write proxy has open cannot be
deleted or renamed from under it: `before_removal` is where that one lets it go first.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import stream_name
from quire.codec.stream_metadata.segment import Truncation
from quire.errors import InvalidArgument, MetadataUnavailable, StreamExists
from quire.metadata import ANY_VERSION, Version
from quire.proxy.incarnations import incarnation_of
from quire.rpc.serving import methods
from quire.rpc.serving.results import dlsn_message
from quire.rpc.serving.transport import Caller, Handlers
from quire.stream.info import SegmentInfo, StreamInfo
from quire.stream.namespace import Namespace
from quire.stream.start import Txid
from quire.types import DLSN

PAGE_NAMES: Final = 1000  # In one message, unless the caller says otherwise.
PAGE_NAMES_MAX: Final = 10_000
_RACES_MAX: Final = 10  # Times that a stream may be deleted and created again while we look at it.

_TRUNCATIONS: Final = {
    Truncation.ACTIVE: pb.ACTIVE,
    Truncation.PARTIALLY_TRUNCATED: pb.PARTIALLY_TRUNCATED,
    Truncation.TRUNCATED: pb.TRUNCATED,
}


async def nobody_has_it(stream: str) -> None:
    """For proxies that own no streams."""


def namespace_name(namespace: Namespace) -> str:
    """How requests name a namespace: the last part of its path."""
    return namespace.context.path.rstrip("/").rpartition("/")[2]


def check_namespace(namespace: Namespace, name: str) -> None:
    """Raises `InvalidArgument` unless it is the one that is served; an empty name stands for that."""
    served = namespace_name(namespace)
    if name and name != served:
        raise InvalidArgument(f"this proxy serves namespace {served!r}, not {name!r}", hint=f"Ask for {served!r}.")


class Catalog:
    """The calls of the service `Catalog`, over one namespace."""

    def __init__(
        self, namespace: Namespace, *, before_delete: Callable[[str], Awaitable[None]] = nobody_has_it
    ) -> None:
        """`before_delete` is called with the name of a stream that is to be deleted or renamed."""
        self._namespace, self._before_delete = namespace, before_delete

    def handlers(self) -> Handlers:
        return {
            methods.CREATE_STREAM: self.create_stream,
            methods.DELETE_STREAM: self.delete_stream,
            methods.RENAME_STREAM: self.rename_stream,
            methods.PURGE_STREAM: self.purge_stream,
            methods.GET_STREAM: self.get_stream,
            methods.LIST_STREAMS: self.list_streams,
            methods.GET_STREAM_METADATA: self.get_stream_metadata,
            methods.SET_STREAM_METADATA: self.set_stream_metadata,
        }

    async def create_stream(self, request: pb.CreateStreamRequest, caller: Caller) -> pb.StreamResponse:
        self._check(request.namespace)
        if request.must_not_exist and await self._namespace.stream_exists(request.stream):
            raise StreamExists(f"there is a stream {request.stream!r} already", stream=request.stream)
        await self._namespace.create_stream(request.stream)
        return pb.StreamResponse()

    async def delete_stream(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamResponse:
        self._check(request.namespace)
        await self._before_delete(stream_name(request.stream))
        await self._namespace.delete_stream(request.stream)
        return pb.StreamResponse()

    async def rename_stream(self, request: pb.RenameStreamRequest, caller: Caller) -> pb.StreamResponse:
        self._check(request.namespace)
        await self._before_delete(stream_name(request.stream))
        await self._namespace.rename_stream(request.stream, request.new_name)
        return pb.StreamResponse()

    async def purge_stream(self, request: pb.PurgeStreamRequest, caller: Caller) -> pb.PurgeStreamResponse:
        self._check(request.namespace)
        before = Txid(request.before_txid) if request.HasField("before_txid") else None
        return pb.PurgeStreamResponse(segments=await self._namespace.purge_stream(request.stream, before=before))

    async def get_stream(self, request: pb.StreamRequest, caller: Caller) -> pb.GetStreamResponse:
        self._check(request.namespace)
        context = self._namespace.context
        paths = context.paths(stream_name(request.stream))
        for _ in range(_RACES_MAX):
            before = await incarnation_of(context.store, paths)
            info = await self._namespace.stream_info(request.stream, sizes=request.with_sizes)
            if await incarnation_of(context.store, paths) == before:
                return info_message(info, str(before))
        raise MetadataUnavailable(f"stream {paths.stream!r} is deleted and created again all the time")

    async def list_streams(
        self, request: pb.ListStreamsRequest, caller: Caller
    ) -> AsyncIterator[pb.ListStreamsResponse]:
        """One message after the other, each with a page; with `watch` all top-level names in each."""
        self._check(request.namespace)
        if request.watch:
            async for found in self._namespace.watch_streams():
                names = sorted(name for name in found if name.startswith(request.prefix))
                yield pb.ListStreamsResponse(streams=names)
            return
        size = min(request.page_size or PAGE_NAMES, PAGE_NAMES_MAX)
        after = tuple(request.after.split("/")) if request.after else ()
        page: list[str] = []
        async for name in self._namespace.scan_streams(request.prefix):
            # The scan goes by parts of names: so do we.
            if tuple(name.split("/")) > after:
                page.append(name)
            if len(page) == size:
                yield pb.ListStreamsResponse(streams=page)
                page = []
        if page:
            yield pb.ListStreamsResponse(streams=page)

    async def get_stream_metadata(self, request: pb.StreamRequest, caller: Caller) -> pb.StreamMetadata:
        self._check(request.namespace)
        data, version = await self._namespace.stream_metadata(request.stream)
        return pb.StreamMetadata(data=data, version=version)

    async def set_stream_metadata(self, request: pb.SetStreamMetadataRequest, caller: Caller) -> pb.StreamResponse:
        self._check(request.namespace)
        expected = Version(request.expected) if request.HasField("expected") else ANY_VERSION
        await self._namespace.set_stream_metadata(request.stream, request.data, expected=expected)
        return pb.StreamResponse()

    def _check(self, name: str) -> None:
        check_namespace(self._namespace, name)


def info_message(info: StreamInfo, incarnation: str) -> pb.GetStreamResponse:
    return pb.GetStreamResponse(
        incarnation=incarnation,
        stream=info.stream,
        segments=_segment_messages(info.segments),
        first_dlsn=_place(info.first_dlsn),
        first_txid=info.first_txid,
        last_dlsn=_place(info.last_dlsn),
        last_txid=info.last_txid,
        record_count=info.record_count,
        is_sealed=info.is_sealed,
        owner=info.owner or "",
        subscriptions=[
            pb.Subscription(name=name, position=_place(position)) for name, position in info.subscriptions.items()
        ],
    )


def _segment_messages(segments: Sequence[SegmentInfo]) -> list[pb.Segment]:
    return [
        pb.Segment(
            lssn=each.lssn,
            ledger_id=each.ledger_id,
            is_completed=each.is_completed,
            truncation=_TRUNCATIONS[each.truncation],
            first_txid=each.first_txid,
            last_txid=each.last_txid,
            first_dlsn=_place(each.first_dlsn),
            last_dlsn=_place(each.last_dlsn),
            record_count=each.record_count,
            completed_at_ms=each.completed_at_ms,
            size_bytes=each.size_bytes,
            is_gone_from_bookies=not each.is_hot,
            cold_file=each.cold_file,
        )
        for each in segments
    ]


def _place(dlsn: DLSN | None) -> pb.Dlsn | None:
    return None if dlsn is None else dlsn_message(dlsn)
