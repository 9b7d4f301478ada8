"""Create a stream: the nodes that it lacks, in one transaction, in the order of Apache's clients."""

import asyncio

from quire.codec.stream_metadata.names import check_new_name
from quire.codec.stream_metadata.tree import StreamPaths
from quire.errors import NodeExists, NoSuchNode, NotBound
from quire.metadata import Create, MetadataStore
from quire.runtime import Rng
from quire.stream.settling import settle


async def create_stream(store: MetadataStore, paths: StreamPaths, rng: Rng) -> None:
    """Fine if nothing is missing. Raises `NotBound` if the namespace itself has no node: no stream makes one; and
    `InvalidName` for a new stream with a name that only others give."""
    identity = Create(paths.identity(rng.uuid().hex))

    async def attempt(_: object) -> None:
        wanted = [*((path, b"") for path in paths.ancestors()), *paths.initial_nodes()]
        stats = await asyncio.gather(*(store.exists(path) for path, _ in wanted))
        missing = [Create(path, data) for (path, data), stat in zip(wanted, stats, strict=True) if stat is None]
        if missing and await store.exists(paths.namespace) is None:
            raise NotBound(
                f"the namespace {paths.namespace!r} does not exist",
                hint="Correct its path, or open it with `create=True`: then it is made.",
                path=paths.namespace,
            )
        is_new = any(create.path == paths.root for create in missing)
        if is_new:
            check_new_name(paths.stream, "stream")
        await store.transaction(*missing, *([identity] if is_new else []))

    # A node that appears, or a parent that goes, between the look and the creation: look again.
    await settle(store, attempt, races=(NodeExists, NoSuchNode), shown=f"stream {paths.stream!r}")
