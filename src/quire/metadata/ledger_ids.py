"""New ledger ids that no other client, Java or Python, gets too.

The ZooKeeper-shaped layouts let the store number a short-lived sequential node. When 31 bits are used up, the two
hierarchical layouts go on with `idgen-long`: a node for each value of the high half (HOB), numbered below in the same
way. Once `idgen-long` exists nobody goes back. The etcd layout counts the writes of one of 128 bucket keys instead.
"""

from typing import Final

from quire.codec.layout import ETCD, FLAT
from quire.codec.ledger_paths import (
    ETCD_BUCKETS,
    ID_PREFIX,
    etcd_id,
    hob_name,
    hob_number,
    long_id,
    short_id,
)
from quire.errors import LedgerIdsExhausted, NodeExists, NoSuchNode, Refused, Unavailable
from quire.metadata.api import MetadataStore
from quire.metadata.driver import ANY_VERSION, Version
from quire.metadata.paths import join
from quire.runtime import Rng
from quire.types import LedgerId

_HOBS_KEPT: Final = 3
_FIRST_VERSION: Final = Version(0)


class LedgerIds:
    """Makes ids for one cluster."""

    def __init__(self, store: MetadataStore, root: str, layout: str, rng: Rng) -> None:
        self._store, self._root, self._layout, self._rng = store, root, layout, rng
        self._long = False  # Whether idgen-long is known to exist.

    async def next_id(self) -> LedgerId:
        """A new id. Raises `LedgerIdsExhausted` where the layout has no more."""
        if self._layout == ETCD:
            return await self._next_bucket_id()
        if self._layout == FLAT:
            low = await self._next_number(join(self._root, ID_PREFIX))
            if low is None:
                raise LedgerIdsExhausted("the flat layout has used up its ledger ids")
            return LedgerId(low)
        long_root = join(self._root, "idgen-long")
        self._long = self._long or await self._store.exists(long_root) is not None
        if not self._long:
            low = await self._next_number(join(self._root, "idgen", ID_PREFIX))
            if low is not None:
                return LedgerId(low)
            await self._ensure(long_root)
            self._long = True
        return await self._next_long_id(long_root)

    async def _next_number(self, prefix: str) -> int | None:
        """Have the store number a node; None when the numbers are used up."""
        path = (await self._store.create(prefix, ephemeral=True, sequential=True, parents=True)).path
        try:
            await self._store.delete(path, expected=ANY_VERSION)
        except (Refused, Unavailable):
            pass  # It goes with the session; its number is taken either way.
        return short_id(path)

    async def _next_long_id(self, long_root: str) -> LedgerId:
        while True:
            listing = await self._store.children(long_root)
            highs = sorted(high for name in listing.names if (high := hob_number(name)) is not None)
            if not highs:
                await self._ensure(join(long_root, hob_name(1)))
                continue
            low = await self._next_number(join(long_root, hob_name(highs[-1]), ID_PREFIX))
            if low is None:
                await self._ensure(join(long_root, hob_name(highs[-1] + 1)))
                continue
            for high in highs[:-_HOBS_KEPT]:
                await self._drop(join(long_root, hob_name(high)))
            return long_id(highs[-1], low)

    async def _ensure(self, path: str) -> None:
        try:
            await self._store.create(path)
        except NodeExists:
            pass  # Another client came to the same end of the numbers.

    async def _drop(self, path: str) -> None:
        try:
            await self._store.delete(path, expected=await self._version_if_untouched(path))
        except (Refused, Unavailable):
            pass  # Only tidiness: numbers below old high halves are never used again.

    async def _version_if_untouched(self, path: str) -> Version:
        stat = await self._store.exists(path)
        if stat is None or stat.writes > 1:
            raise NoSuchNode(f"{path!r} is gone, or not ours to delete", path=path)
        return stat.version

    async def _next_bucket_id(self) -> LedgerId:
        first = self._rng.randrange(ETCD_BUCKETS)
        for step in range(ETCD_BUCKETS):
            bucket = (first + step) % ETCD_BUCKETS
            made = etcd_id(bucket, await self._count_write(join(self._root, "buckets", f"{bucket:03d}")))
            if made is not None:
                return made
        raise LedgerIdsExhausted("all buckets have used up their ledger ids", hint="")

    async def _count_write(self, path: str) -> int:
        """Write the bucket key and return how often that has happened since it was created."""
        while True:
            try:
                return (await self._store.set(path, b"", expected=ANY_VERSION)).writes
            except NoSuchNode:
                try:
                    return (await self._store.create(path, parents=True)).writes
                except NodeExists:
                    continue  # Another client created it first: count on.
