"""The few bytes that an application may keep at a stream, in the stream's own node."""

from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import MetadataOutcomeUnknown, NoSuchNode
from quire.metadata import ANY_VERSION, Check, MetadataStore, Set, Version
from quire.stream.same_stream import missing
from quire.stream.settling import settle


async def read_kept(store: MetadataStore, paths: StreamPaths) -> tuple[bytes, Version]:
    """Raises `NoSuchStream`."""
    await store.sync()
    try:
        node = await store.get(paths.top)
        if await store.exists(paths.segments) is not None:
            return node.data, node.stat.version
    except NoSuchNode:
        pass
    raise missing(paths.stream)


async def keep(store: MetadataStore, paths: StreamPaths, data: bytes, expected: Version) -> None:
    """Raises `NoSuchStream`, `VersionConflict`."""

    async def attempt(doubt: MetadataOutcomeUnknown | None) -> None:
        if doubt is not None:
            node = await store.get(paths.top)
            if node.data == data:
                return
            if expected not in (ANY_VERSION, node.stat.version):
                raise doubt  # Others wrote since: perhaps after us, perhaps before.
        await store.transaction(Check(paths.segments, ANY_VERSION), Set(paths.top, data, expected))

    try:
        await settle(store, attempt, races=(), shown=f"stream {paths.stream!r}")
    except NoSuchNode as error:
        raise missing(paths.stream) from error
