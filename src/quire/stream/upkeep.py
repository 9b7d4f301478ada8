"""What is done to a stream as a whole, by name: hide its old end, delete that, end the stream, forget a reader.

Each of these can be done again without harm. So a lost answer is no reason to stop: the next look tells what is left
to do.
"""

from quire.codec.stream_metadata.segment import lssn_of_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import InvalidArgument, NodeNotEmpty, StreamOwned, StreamSealed
from quire.metadata import MetadataStore
from quire.stream.cold_nodes import cold_names
from quire.stream.context import StreamContext
from quire.stream.nodes import StreamNodes
from quire.stream.ownership import open_stream_writer
from quire.stream.retention import Retention, truncate_before
from quire.stream.same_stream import missing
from quire.stream.segment_index import SegmentIndex
from quire.stream.settings import StreamSettings
from quire.stream.settling import settle
from quire.stream.start import Places, Txid
from quire.stream.subscriptions import Subscriptions
from quire.types import DLSN, Lssn


async def truncate_stream(
    context: StreamContext, paths: StreamPaths, settings: StreamSettings, before: DLSN | Txid
) -> DLSN:
    """Hide all records before a place, or with lower txids. Returns the first place that is left.

    A place that the stream cannot have reached is most likely one of another stream: raises `PositionInFuture`. Raises
    `NoSuchStream`, and for a txid, which is looked for in the ledgers, what reading raises.
    """
    if not isinstance(before, DLSN | Txid):
        raise InvalidArgument(f"a stream cannot be truncated before {before!r}", hint="Give a DLSN or a txid.")
    index = SegmentIndex(context.store, paths, context.runtime.clock, timeout_s=settings.call_timeout_s)
    places = Places(context, paths.stream, index, settings)
    await index.refresh()
    place = await places.find(before, skip_truncated=True)
    nodes = StreamNodes(context.store, paths, index.same)

    async def attempt(_: object) -> None:
        await truncate_before(nodes, place)

    await settle(context.store, attempt, races=(), shown=f"stream {paths.stream!r}")
    await index.refresh()
    return await places.earliest()


async def purge_stream(
    context: StreamContext, paths: StreamPaths, before: Txid | None, settings: StreamSettings
) -> int:
    """Delete segments that have lower txids only, or without one those that are truncated as a whole."""
    if not (before is None or isinstance(before, Txid)):
        raise InvalidArgument(f"a stream cannot be purged before {before!r}", hint="Give a txid, or nothing.")
    nodes = StreamNodes(context.store, paths)
    retention, before_it = Retention(context, nodes, password=settings.password), await _present(nodes)

    async def attempt(_: object) -> None:
        await (retention.purge_truncated() if before is None else retention.purge_below(before.value))

    await settle(context.store, attempt, races=(), shown=f"stream {paths.stream!r}")
    return len(before_it - await _present(nodes))  # An attempt whose answer was lost did not count what it deleted.


async def _present(nodes: StreamNodes) -> set[Lssn | str]:
    """Which segments there are, whether in progress or completed. Names of old writers stand for themselves."""
    hot = {lssn_of_name(name) or name for name in await nodes.segment_names()}
    return hot | set(await cold_names(nodes.store, nodes.paths))


async def seal_stream(context: StreamContext, paths: StreamPaths, settings: StreamSettings) -> None:
    """End a stream. Fine if it has ended. `settings` should not let a writer create it."""
    try:
        async with open_stream_writer(context, paths.stream, settings) as writer:
            await writer.seal()
    except StreamSealed:
        pass


async def check_exists(store: MetadataStore, paths: StreamPaths) -> None:
    """Raise `NoSuchStream` unless there is one."""
    await store.sync()
    if await store.exists(paths.segments) is None:
        raise missing(paths.stream)


async def delete_subscription(store: MetadataStore, paths: StreamPaths, name: str) -> None:
    """Forget a named reader and its position. Fine if there is none; `StreamOwned` while it reads exclusively."""
    await check_exists(store, paths)

    async def attempt(_: object) -> None:
        await Subscriptions(store, paths).delete(name)

    try:
        await settle(store, attempt, races=(), shown=f"subscription {name!r} of stream {paths.stream!r}")
    except NodeNotEmpty as error:
        raise StreamOwned(
            f"subscription {name!r} of stream {paths.stream!r} is held by a reader",
            hint="Close its exclusive readers first.",
            path=paths.subscriber_lock(name),
        ) from error
