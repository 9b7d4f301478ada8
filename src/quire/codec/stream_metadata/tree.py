"""The nodes of one stream below its namespace, and the contents of those that hold a single value.

    NS/<stream>                           empty, or what an application keeps there
    └── <default>                         empty; the angle brackets are part of the name
        ├── maxtxid                       decimal   the highest txid of any completed segment
        ├── version                       ff ff ff ff
        ├── lock, readLock                empty     parents of lock members
        ├── ledgers                       decimal   the highest LSSN ever given; parent of the segments
        ├── allocation                    empty, or the decimal id of a ledger that no segment has yet
        ├── subscribers/<id>              base64 DLSN of the position that was committed last, or empty
        │   └── readLock                  empty     parent of lock members
        ├── cold/<segment>                JSON      where an archived segment is: see `quire.codec.cold`
        └── identity-<32 hex digits>      empty     which stream this is, of all that ever had the name

Beside them there may be, if a sink writes the stream, what `quire.codec.stream_metadata.sinks` describes:

        ├── sinks/<sink>…                 how far a sink came
        └── staged/<name>                 a ledger that is to become a segment

Only Quire knows `cold`, and makes it when a segment is archived. Apache's clients look for the others by name.

Only Quire knows `identity-…`, too. It is created with the stream, and a renamed stream keeps it. One that Apache's
client created has none: Apache's client can rename only a stream in which it knows every node. The identity is in the
node's name, not in its data, because ZooKeeper compares versions only, and those begin at 0 again when a stream is
deleted and made again: a transaction that checks that the node exists fails for a stream that was made again.

Invariant: each node of `initial_nodes` holds bytes, if only none. Apache's clients take a node without data for absent.
"""

from collections.abc import Iterable
from typing import Final

from quire.codec.damage import INT64_MAX, decimal, reading, shown, utf8
from quire.codec.stream.dlsn import decode_dlsn_text, encode_dlsn_text
from quire.codec.stream_metadata.names import stream_name
from quire.errors import DamagedMetadata, InvalidArgument, InvalidName
from quire.types import DLSN, LedgerId, Lssn, ledger_id
from quire.values import dataclass

DEFAULT_LOG: Final = "<default>"
INVALID_TXID: Final = -999  # No txid: that of a stream without records.
TXID_MAX: Final = INT64_MAX  # As the highest txid of a stream: it was sealed by its writer.

_IDENTITY: Final = "identity-"
_LAYOUT_VERSION: Final = b"\xff\xff\xff\xff"  # -1 in 32 bits, the only layout there ever was.


@dataclass(frozen=True, slots=True)
class StreamPaths:
    """Where everything of one stream is. `namespace` is the path of the namespace's own node."""

    namespace: str
    stream: str
    log: str = DEFAULT_LOG

    def __post_init__(self) -> None:
        if stream_name(self.stream) != self.stream:
            raise InvalidName(f"{shown(self.stream)} is not the normal form of a stream's name", stream=self.stream)

    @property
    def top(self) -> str:
        return f"{self.namespace.rstrip('/')}/{self.stream}"

    @property
    def root(self) -> str:
        return f"{self.top}/{self.log}"

    @property
    def max_txid(self) -> str:
        return f"{self.root}/maxtxid"

    @property
    def version(self) -> str:
        return f"{self.root}/version"

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    @property
    def read_lock(self) -> str:
        return f"{self.root}/readLock"

    @property
    def segments(self) -> str:
        return f"{self.root}/ledgers"

    @property
    def allocation(self) -> str:
        return f"{self.root}/allocation"

    @property
    def subscribers(self) -> str:
        return f"{self.root}/subscribers"

    @property
    def sinks(self) -> str:
        return f"{self.root}/sinks"

    @property
    def staged(self) -> str:
        return f"{self.root}/staged"

    @property
    def producers(self) -> str:
        """The first segment that has producers' records in it, if any has: see `quire.codec.stream.producers`."""
        return f"{self.root}/producers"

    @property
    def cold(self) -> str:
        return f"{self.root}/cold"

    def identity(self, identity: str) -> str:
        return f"{self.root}/{_IDENTITY}{identity}"

    def segment(self, name: str) -> str:
        return f"{self.segments}/{name}"

    def cold_segment(self, name: str) -> str:
        """Where an archived segment is recorded: under the name of its own node."""
        return f"{self.cold}/{name}"

    def subscriber(self, subscriber: str) -> str:
        """Where the position of a subscriber is kept. Raises `InvalidName`: its id is one part of a path."""
        if not subscriber or "/" in subscriber or subscriber in (".", ".."):
            raise InvalidName(f"{shown(subscriber)} cannot name a subscriber", hint="Use a name without slashes.")
        return f"{self.subscribers}/{subscriber}"

    def subscriber_lock(self, subscriber: str) -> str:
        return f"{self.subscriber(subscriber)}/readLock"

    def ancestors(self) -> list[str]:
        """The nodes between the namespace and the stream, from the top: those of a nested name, all empty."""
        parts = self.stream.split("/")[:-1]
        return [f"{self.namespace.rstrip('/')}/{'/'.join(parts[: end + 1])}" for end in range(len(parts))]

    def initial_nodes(self) -> list[tuple[str, bytes]]:
        """The nodes of a new stream with their contents, in the order in which one transaction creates them."""
        return [
            (self.top, b""),
            (self.root, b""),
            (self.max_txid, encode_max_txid(0)),
            (self.version, _LAYOUT_VERSION),
            (self.lock, b""),
            (self.read_lock, b""),
            (self.segments, encode_max_lssn(Lssn(0))),
            (self.allocation, encode_allocation(None)),
        ]


def identity_among(names: Iterable[str]) -> str | None:
    """The identity of a stream whose log has nodes of these names; None if Apache's client created it."""
    return min((name.removeprefix(_IDENTITY) for name in names if name.startswith(_IDENTITY)), default=None)


def check_layout_version(data: bytes) -> None:
    """Raise `DamagedMetadata` unless the stream is laid out as above."""
    if data != _LAYOUT_VERSION:
        raise DamagedMetadata(f"layout version of a stream: it should be ff ff ff ff, but is {shown(data.hex(' '))}")


def encode_max_lssn(lssn: Lssn) -> bytes:
    if not 0 <= lssn <= INT64_MAX:
        raise InvalidArgument(f"{lssn} cannot be the highest LSSN of a stream", lssn=lssn)
    return b"%d" % lssn


def decode_max_lssn(data: bytes) -> Lssn:
    """0 if the stream never had a segment. Raises `DamagedMetadata`."""
    what = "highest LSSN of a stream"
    return Lssn(decimal(utf8(data, what), what, low=0))


def encode_max_txid(txid: int) -> bytes:
    if not -INT64_MAX - 1 <= txid <= INT64_MAX:
        raise InvalidArgument(f"txid {txid} does not fit into 64 bits", txid=txid)
    return b"%d" % txid


def decode_max_txid(data: bytes) -> int:
    """Raises `DamagedMetadata`, where Apache's writers take what they cannot read for `INVALID_TXID` and go on.

    Going on could write behind the end of a sealed stream, or bring its txids out of order.
    """
    what = "highest txid of a stream"
    return decimal(utf8(data, what), what)


def encode_allocation(ledger: LedgerId | None) -> bytes:
    return b"" if ledger is None else b"%d" % ledger_id(ledger)


def decode_allocation(data: bytes) -> LedgerId | None:
    """The ledger that was made and not yet given to a segment, if any. Raises `DamagedMetadata`."""
    what = "ledger allocation of a stream"
    if not data:
        return None
    with reading(what):
        return ledger_id(decimal(utf8(data, what), what))


def encode_subscription(position: DLSN) -> bytes:
    return encode_dlsn_text(position).encode()


def decode_subscription(data: bytes) -> DLSN | None:
    """The position that was committed last; None if the subscriber only ever took its lock. Raises `DamagedMetadata`.

    Apache's readers begin at the beginning when they cannot read it. Whether to do so is for the caller to say.
    """
    return decode_dlsn_text(utf8(data, "subscription")) if data else None
