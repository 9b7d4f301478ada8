"""Which creation of a stream is meant: one that is deleted and created again is another one, though it has the same
name and its records may have the same places.
"""

from typing import NamedTuple

from quire.codec.stream_metadata.tree import StreamPaths
from quire.metadata import MetadataStore, Version
from quire.stream.same_stream import missing


class Incarnation(NamedTuple):
    """One creation of a stream. Backends without times have versions that never come back."""

    version: Version
    created_ms: int | None

    def __str__(self) -> str:
        """As clients are told, who only compare."""
        return f"{self.version}-{self.created_ms}"


async def incarnation_of(store: MetadataStore, paths: StreamPaths) -> Incarnation:
    """Of the stream that bears the name now. Raises `NoSuchStream`."""
    stat = await store.exists(paths.version)  # Written when the stream is created, and never again.
    if stat is None:
        raise missing(paths.stream)
    return Incarnation(stat.version, stat.created_ms)
