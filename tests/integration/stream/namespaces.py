"""Namespaces in real metadata stores, each test with one of its own. No bookies: ledgers are metadata only."""

from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from quire.codec.stream_metadata.segment import Completion, Segment, encode_segment, segment_name
from quire.metadata import StoreSettings
from quire.stream.namespace import Namespace
from quire.stream.settings import StreamSettings
from quire.types import DLSN, BookieId, EntryId, Fragment, LedgerId, LedgerMetadata, Lssn, Quorum, SlotId
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.zookeeper import ZooKeeperServer

SETTINGS = StreamSettings(lock_timeout_s=0.5)
STORE = StoreSettings(session_timeout_s=4.0)
_METADATA = LedgerMetadata(Quorum(1, 1, 1), (Fragment(EntryId(0), (BookieId("bk1:3181"),)),))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a test may have namespaces and a ledger cluster."""

    backend: str
    begin: str  # Of the URIs of all namespaces there.
    root: str  # Nobody else uses what is below.

    def uri(self, namespace: str = "ns") -> str:
        return f"{self.begin}{self.root}/{namespace}"

    @property
    def ledgers_root(self) -> str:
        return f"{self.root}-ledgers"


def place_for(backend: str, folder: Path, server: ZooKeeperServer | EtcdServer | None) -> Place:
    root = f"/test-{uuid4().hex}"
    if server is None:
        return Place(backend, f"distributedlog+sqlite:{folder}/metadata.db", root)
    scheme = "distributedlog" if backend == "zk" else "distributedlog+etcd"
    return Place(backend, f"{scheme}://127.0.0.1:{server.port}", root)


async def fill(namespace: Namespace, stream: str, *, completed: int) -> None:
    """Give a stream segments with ledgers."""
    paths, store = namespace.context.paths(stream), namespace.context.store
    for number in range(1, completed + 1):
        lssn = Lssn(number)
        ledger = await namespace.context.ledgers.ledgers_metadata.create(_METADATA)
        done = Completion(number, 1_500_000_000_000, 1, DLSN(lssn, EntryId(0), SlotId(0)))
        segment = Segment.begun(lssn, ledger.ledger_id, first_txid=number).completed(done, start_sequence_id=number - 1)
        await store.create(paths.segment(segment_name(segment)), encode_segment(segment))


async def ledgers_of(namespace: Namespace) -> set[LedgerId]:
    return {ledger async for ledger in namespace.context.ledgers.scan()}


async def tree_below(namespace: Namespace, path: str) -> dict[str, bytes]:
    """All nodes below `path`, by their paths behind it."""
    store, found, waiting = namespace.context.store, dict[str, bytes](), [path]
    while waiting:
        at = waiting.pop()
        found[at.removeprefix(path)] = (await store.get(at)).data
        waiting += [f"{at}/{name}" for name in (await store.children(at)).names]
    del found[""]
    return found
