"""What all parts of an open namespace share."""

from dataclasses import field

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.tree import StreamPaths
from quire.cold import ColdStores
from quire.ledger.client import LedgerClient
from quire.metadata import MetadataStore
from quire.runtime import Runtime
from quire.stream.metrics import StreamMetrics
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class StreamContext:
    """One namespace, open: its metadata, and the ledgers of the cluster that it is bound to."""

    runtime: Runtime
    store: MetadataStore
    ledgers: LedgerClient
    path: str  # Of the namespace's own node.
    binding: NamespaceBinding  # With the servers that absent fields stand for.
    client_id: str  # Who we are in locks.
    cold: ColdStores = field(default_factory=ColdStores)  # Where archived segments are.
    metrics: StreamMetrics = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", StreamMetrics(self.ledgers.metrics.registry))

    def paths(self, stream: str) -> StreamPaths:
        """Where a stream's nodes are. `stream` is in its normal form."""
        return StreamPaths(self.path, stream)
