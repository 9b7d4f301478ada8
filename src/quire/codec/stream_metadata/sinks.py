"""What sinks keep at a stream: how far each of them came, and ledgers that are to become segments.

    sinks/<sink id, URL-encoded>     {"v":1, "query":…, "batch":17, "transactions":[…], "first":…, "last":…, "since":…,
                                      "token":…}
    sinks/<sink id>@<00 to 31>       the same, for batches that have a name
    sinks/<sink id>@unnamed          the same, for batches that have none
    staged/<sink>-<batch>-<random>   {"v":1, "ledger":12, "sink":…, "at_ms":…, "doomed":false}

Both are JSON. Places are lists of three numbers. Apache's programs know neither node, and pass them by.

A sink writes batches, and each of them once. Those of a streaming query are numbered, others have a name. Names are
kept as digests, spread over nodes, so that a batch reads and writes one small node, however many came before. Behind
the digest of a name is that of the rows, as far as it was given: the same name with other rows is refused. A batch
that nobody named gets a name by chance, which has to be known only until its own commit is over. `since` is there while
batches may be in the stream of which the node does not tell yet: their tags are in entries from that place on. `token`
is another one with each write, so that whoever lost an answer can tell its own write from others.

Invariants:
  NamesStay     a name that is known stays known. Where there is no room for one more, a batch with a new name is
                refused: if an old one were forgotten, its batch would be written twice when it comes again.
  NamedByNode   names by chance are in a node of their own, and drive out each other only.
  Nobodys       a staged node is there as long as its ledger is nobody's. Who publishes the ledger deletes the node in
                the same transaction, in the version that it read; who wants to delete the ledger writes `doomed` first.
"""

import base64
import hashlib
import json
import zlib
from dataclasses import replace
from typing import Any, Final, Self
from urllib.parse import quote

from quire.codec.damage import INT64_MAX, check_text, reading, shown, utf8
from quire.errors import DamagedMetadata, InvalidArgument, InvalidName, SinkFull, SinkTaken
from quire.types import DLSN, EntryId, LedgerId, Lssn, SlotId, ledger_id
from quire.values import dataclass

NAMED: Final = -1  # Instead of a number: the batch has a name.
UNNAMED: Final = -2  # The same, but the name is by chance: nobody will ever say it again.

NAME_NODES: Final = 32
NODE_NAMES_MAX: Final = 4096  # 123 KB, which leaves room in a transaction of ZooKeeper's 1 MB for many segments.
UNNAMED_MAX: Final = 256  # At least as many as ever commit at the same moment.

_DIGEST_BYTES: Final = 12
_DIGEST_CHARACTERS: Final = 16  # Of so many bytes, in base64.
_VERSION: Final = 1
_ID_CHARACTERS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What makes a batch the same one when it comes again: its sink, and its number in a query, or its name."""

    sink: str
    number: int = NAMED
    query: str = ""  # Whose number it is.
    transaction: str = ""  # The name, if it has no number.
    rows: str = ""  # A digest of what it consists of, for those with a name; empty where that is not known.

    def __post_init__(self) -> None:
        for text in (self.sink, self.query, self.transaction):
            check_text(text)
            if len(text) > _ID_CHARACTERS_MAX:
                raise InvalidName(f"{shown(text)} is too long for a sink", hint="Use 200 characters at most.")
        if self.sink in ("", ".", ".."):
            raise InvalidName(f"{shown(self.sink)} cannot name a sink", hint="Give it a name with letters.")
        if (self.number < 0) != bool(self.transaction) or not UNNAMED <= self.number <= INT64_MAX:
            raise InvalidArgument(f"batch {self.number} of sink {shown(self.sink)} has no number, or name, of its own")

    @property
    def node(self) -> str:
        """What the node is called that tells of it. No sink id, once encoded, has an `@`."""
        sink = quote(self.sink, safe="")
        if self.number >= 0:
            return sink
        if self.number == UNNAMED:
            return f"{sink}@unnamed"
        return name_nodes(self.sink)[hashlib.sha256(self.transaction.encode()).digest()[0] % NAME_NODES]

    @property
    def digest(self) -> str:
        """Of its name: among as many as all nodes of a sink take, two are the same with a chance of 2⁻⁶³."""
        return base64.urlsafe_b64encode(hashlib.sha256(self.transaction.encode()).digest()[:_DIGEST_BYTES]).decode()

    @property
    def staged_prefix(self) -> str:
        """What the names of its staged nodes begin with."""
        which = f"{self.number:d}" if self.number >= 0 else f"t{zlib.crc32(self.transaction.encode()):08x}"
        return f"{zlib.crc32(self.sink.encode()):08x}-{which}-"

    @property
    def shown(self) -> str:
        what = f"batch {self.number}" if self.number >= 0 else f"transaction {shown(self.transaction)}"
        return f"{what} of sink {shown(self.sink)}"


def name_nodes(sink: str) -> list[str]:
    """What the nodes are called that tell of a sink's batches with names."""
    return [f"{quote(sink, safe='')}@{number:02d}" for number in range(NAME_NODES)]


@dataclass(frozen=True, slots=True)
class SinkState:
    """How far a sink came."""

    query: str = ""
    batch: int = -1
    transactions: tuple[str, ...] = ()  # Digests of names, and behind each that of its rows.
    first: DLSN | None = None  # Of the last batch; None if it was empty.
    last: DLSN | None = None
    since: DLSN | None = None
    token: str = ""

    def has(self, batch: SinkBatch) -> bool:
        """Whether this batch is in the stream. Raises `SinkTaken` for one that another query numbered, or that has
        other rows than the one with its name, and `SinkFull` for a new name that could not be kept.
        """
        if batch.transaction:
            rows = next((name[_DIGEST_CHARACTERS:] for name in self.transactions if _is_of(name, batch)), None)
            is_known = rows is not None
            if rows and batch.rows and rows != batch.rows:
                raise SinkTaken(
                    f"{batch.shown} is in the stream with other rows: these were not written",
                    hint="Write other rows under another `txnId`. A query that is run again has to give the same rows.",
                    sink=batch.sink,
                )
            if not is_known and batch.number == NAMED and len(self.transactions) >= NODE_NAMES_MAX:
                raise SinkFull(
                    f"{batch.shown} is new, and {len(self.transactions)} names are known where it would be kept",
                    sink=batch.sink,
                )
            return is_known
        if batch.number > self.batch:
            return False
        if self.query != batch.query:
            raise SinkTaken(
                f"{batch.shown} comes from query {shown(batch.query)}, but batches up to {self.batch} came from "
                f"query {shown(self.query)}",
                sink=batch.sink,
                batch=batch.number,
            )
        return True

    def tells_of(self, batch: SinkBatch) -> bool:
        """Whether a batch that is in the stream is known here. Along a stream numbers grow, whatever query has them."""
        if batch.transaction:
            return any(_is_of(name, batch) for name in self.transactions)
        return batch.number <= self.batch

    @property
    def digests(self) -> frozenset[str]:
        """Of all names."""
        return frozenset(name[:_DIGEST_CHARACTERS] for name in self.transactions)

    def after(self, batch: SinkBatch, *, first: DLSN | None, last: DLSN | None, since: DLSN | None, token: str) -> Self:
        """The state with one more batch."""
        place: dict[str, Any] = {"first": first, "last": last, "since": since, "token": token}
        if batch.transaction:
            names = (*self.transactions, batch.digest + batch.rows)
            return replace(self, transactions=names if batch.number == NAMED else names[-UNNAMED_MAX:], **place)
        return replace(self, query=batch.query, batch=batch.number, **place)


def _is_of(name: str, batch: SinkBatch) -> bool:
    """Whether what is kept of a name is this batch's."""
    return name.startswith(batch.digest)


@dataclass(frozen=True, slots=True)
class StagedNode:
    """A ledger that is to become a segment."""

    ledger: LedgerId
    sink: str
    at_ms: int  # When it was begun, by the clock of whoever did so.
    doomed: bool = False


def encode_sink(state: SinkState) -> bytes:
    facts: dict[str, object] = {
        "v": _VERSION,
        "query": state.query,
        "batch": state.batch,
        "transactions": list(state.transactions),
        "first": state.first,
        "last": state.last,
        "since": state.since,
        "token": state.token,
    }
    return _text(facts)


def decode_sink(data: bytes) -> SinkState:
    """Raises `DamagedMetadata`."""
    what = "sink"
    facts = _facts(data, what)
    names = facts.get("transactions", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DamagedMetadata(f"{what}: transactions should be a list of texts, but is {shown(names)}")
    return SinkState(
        _typed(facts, "query", str, what),
        _typed(facts, "batch", int, what),
        tuple(names),
        _place(facts, "first", what),
        _place(facts, "last", what),
        _place(facts, "since", what),
        _typed(facts, "token", str, what),
    )


def encode_staged(node: StagedNode) -> bytes:
    return _text({"v": _VERSION, "ledger": node.ledger, "sink": node.sink, "at_ms": node.at_ms, "doomed": node.doomed})


def decode_staged(data: bytes) -> StagedNode:
    """Raises `DamagedMetadata`."""
    what = "staged ledger"
    facts = _facts(data, what)
    with reading(what):
        ledger = ledger_id(_typed(facts, "ledger", int, what))
    sink, at_ms = _typed(facts, "sink", str, what), _typed(facts, "at_ms", int, what)
    return StagedNode(ledger, sink, at_ms, _typed(facts, "doomed", bool, what))


def _text(facts: dict[str, object]) -> bytes:
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()


def _facts(data: bytes, what: str) -> dict[str, Any]:
    try:
        facts = json.loads(utf8(data, what))
    except (ValueError, RecursionError) as error:
        raise DamagedMetadata(f"{what}: it is not JSON: {shown(data)}") from error
    if not isinstance(facts, dict) or facts.get("v") != _VERSION:
        raise DamagedMetadata(f"{what}: it should be version {_VERSION}, but is {shown(data)}")
    return facts


def _typed(facts: dict[str, Any], name: str, kind: type, what: str) -> Any:
    value = facts.get(name)
    if type(value) is not kind or (isinstance(value, int) and not -INT64_MAX <= value <= INT64_MAX):
        raise DamagedMetadata(f"{what}: {name} should be {kind.__name__}, but is {shown(value)}")
    return value


def _place(facts: dict[str, Any], name: str, what: str) -> DLSN | None:
    numbers = facts.get(name)
    if numbers is None:
        return None
    is_place = isinstance(numbers, list) and len(numbers) == 3
    if not is_place or not all(type(number) is int and -1 <= number <= INT64_MAX for number in numbers):
        raise DamagedMetadata(f"{what}: {name} should be a place, but is {shown(numbers)}")
    lssn, entry, slot = numbers
    return DLSN(Lssn(lssn), EntryId(entry), SlotId(slot))
