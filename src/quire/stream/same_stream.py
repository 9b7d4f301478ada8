"""Which stream is meant, of all that ever had its name: one that is deleted and made again is another one.

The names of segments, cold files, sinks and subscribers come again in the new stream; on ZooKeeper, where versions
begin at 0 again, so do the versions of their nodes. What was read in the old stream must not be written to the new one.
Each stream has an identity for that, in the name of a node of its own (see `StreamPaths`).

Whoever changes a stream, or goes on reading it, calls `know` before it reads anything of it. It changes nodes by
`transaction`; before it deletes a ledger or a file that they name, it calls `check`.

A stream that Apache's client created has no identity: nothing tells it from another such one of its name.
"""

from quire.codec.stream_metadata.tree import StreamPaths, identity_among
from quire.errors import NodeExists, NoSuchNode, NoSuchStream, VersionConflict, invariant
from quire.metadata import ANY_VERSION, Check, MetadataStore, Written
from quire.metadata.driver import Op


class SameStream:
    """One stream, whatever has its name later."""

    def __init__(self, store: MetadataStore, paths: StreamPaths, identity: str | None = None) -> None:
        """Without an identity it is the stream that has the name at the first `know`."""
        self.store, self.paths, self.identity = store, paths, identity
        self._is_known = identity is not None

    async def know(self) -> str | None:
        """Find out which stream it is, unless that is known. Returns its identity, None if it has none. Raises
        `NoSuchStream`.
        """
        if not self._is_known:
            self.identity, self._is_known = await self._now(), True
        return self.identity

    async def check(self) -> None:
        """Return if what was read before this is of the stream that is meant. Raises `NoSuchStream`."""
        if self._is_known and await self._now() != self.identity:
            raise gone(self.paths.stream)

    async def _now(self) -> str | None:
        try:
            return identity_among((await self.store.children(self.paths.root)).names)
        except NoSuchNode as error:
            raise missing(self.paths.stream) from error

    @property
    def guard(self) -> list[Op]:
        """What a transaction checks so that it changes nothing in another stream."""
        return [] if self.identity is None else [Check(self.paths.identity(self.identity), ANY_VERSION)]

    async def transaction(self, *ops: Op) -> list[Written | None]:
        """As the store's, in this stream only. Raises `NoSuchStream` if it is gone."""
        invariant(self._is_known, "a stream is changed that nobody knows", stream=self.paths.stream)
        try:
            return (await self.store.transaction(*ops, *self.guard))[: len(ops)]
        except (NodeExists, NoSuchNode, VersionConflict):
            await self.check()
            raise


def missing(stream: str) -> NoSuchStream:
    """The error for a name that no stream has."""
    return NoSuchStream(f"there is no stream {stream!r}", stream=stream)


def gone(stream: str) -> NoSuchStream:
    """The error for whoever goes on with a stream that was deleted."""
    return NoSuchStream(
        f"stream {stream!r} is gone: it was deleted or renamed meanwhile",
        hint="A stream that has the name now is another one. Begin anew: positions in this one mean nothing there.",
        stream=stream,
    )
