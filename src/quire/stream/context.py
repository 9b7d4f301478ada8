"""What all parts of an open namespace share."""

from dataclasses import dataclass, field

from quire.codec.stream_metadata.binding import NamespaceBinding
from quire.codec.stream_metadata.tree import StreamPaths
from quire.ledger.client import LedgerClient
from quire.metadata import MetadataStore
from quire.runtime import Runtime
from quire.stream.metrics import StreamMetrics


@dataclass(frozen=True, slots=True)
class StreamContext:
    """One namespace, open: its metadata, and the ledgers of the cluster that it is bound to."""

    runtime: Runtime
    store: MetadataStore
    ledgers: LedgerClient
    path: str  # Of the namespace's own node.
    binding: NamespaceBinding  # With the servers that absent fields stand for.
    client_id: str  # Who we are in locks.
    metrics: StreamMetrics = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", StreamMetrics(self.ledgers.metrics.registry))

    def paths(self, stream: str) -> StreamPaths:
        """Where a stream's nodes are. `stream` is in its normal form."""
        return StreamPaths(self.path, stream)
