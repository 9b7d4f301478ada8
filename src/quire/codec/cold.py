"""What the metadata says of an archived segment: the node `cold/<segment>` of a stream, as JSON.

    {"version": 1, "segment": "…", "root": "s3://bucket/archive", "file": "ns/orders/seg-000000000003/….parquet",
     "bytes": 1048576, "sha256": "…", "footer_bytes": 2310, "footer_sha256": "…",
     "rows": 51200, "entries": 812, "archived_at_ms": 1767225600000, "hot": true, "ledger": null}

`segment` is what the segment's own node says, in the same words. While the segment is hot, its own node counts; once it
is not, this is all there is of it, and truncation changes it here. `ledger` is a ledger that no segment has any more,
or not yet: whoever meets it may delete it, once no other change of this node is under way.

Invariant: whoever has the node can tell whether a file is the one that was archived, without trusting the file: its
size, its checksum, and the checksum of its footer, which has those of its parts.
"""

import json
import re
from typing import Any, Final

from quire.codec.damage import INT64_MAX, check_text, reading, shown, utf8
from quire.codec.stream_metadata.segment import Segment, decode_segment, encode_segment
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import LedgerId, Lssn, ledger_id
from quire.values import dataclass

VERSION: Final = 1

_WHAT: Final = "archived segment"
_SHA256 = re.compile("[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ColdFile:
    """One file in cold storage, and how to tell that it is the right one."""

    root: str
    """The URI of the cold storage."""

    name: str
    """Of the file, below `root`."""

    size_bytes: int
    sha256: str
    footer_bytes: int
    """How many of its last bytes say what is where in it."""

    footer_sha256: str
    rows: int
    """Records that applications see."""

    entries: int
    """That the segment's ledger had, also those without such records."""

    def __post_init__(self) -> None:
        problem = self._problem()
        if problem:
            raise InvalidArgument(f"{problem} in a file in cold storage", file=self.name)

    def _problem(self) -> str | None:
        for text in (self.root, self.name):
            check_text(text)
        if not self.root or not is_object_name(self.name):
            return f"the name {shown(self.name)} below {shown(self.root)}"
        for digest in (self.sha256, self.footer_sha256):
            if not _SHA256.fullmatch(digest):
                return f"the checksum {shown(digest)}"
        if not 0 < self.footer_bytes <= self.size_bytes <= INT64_MAX:
            return f"a footer of {self.footer_bytes} bytes and {self.size_bytes} in all"
        if not (0 <= self.rows <= INT64_MAX and 0 <= self.entries <= INT64_MAX):
            return f"{self.rows} records in {self.entries} entries"
        return None


@dataclass(frozen=True, slots=True)
class ColdSegment:
    """A segment that is in cold storage. Can be pickled: one process writes the file, another one records it."""

    segment: Segment
    file: ColdFile
    archived_at_ms: int
    is_hot: bool = True
    """Whether bookies have it, too: then the node of the segment says what is true of it."""

    ledger_left: LedgerId | None = None
    """A ledger that no segment has."""

    def __post_init__(self) -> None:
        done = self.segment.completion
        if done is None or not self.segment.lssn:
            raise InvalidArgument("only completed segments with an LSSN can be archived", lssn=self.segment.lssn)
        if self.ledger_left is not None:
            ledger_id(self.ledger_left)
        if not 0 <= self.archived_at_ms <= INT64_MAX:
            raise InvalidArgument(f"{self.archived_at_ms} is no time", archived_at_ms=self.archived_at_ms)

    @property
    def lssn(self) -> Lssn:
        return self.segment.lssn


def is_object_name(name: str) -> bool:
    """Whether this can name an object below a root: parts between slashes, none of which is empty or leads up."""
    return bool(name) and "\0" not in name and all(part not in ("", ".", "..") for part in name.split("/"))


def encode_cold(cold: ColdSegment) -> bytes:
    """The bytes of the node."""
    file = cold.file
    fields = {
        "version": VERSION,
        "segment": encode_segment(cold.segment).decode(),
        "root": file.root,
        "file": file.name,
        "bytes": file.size_bytes,
        "sha256": file.sha256,
        "footer_bytes": file.footer_bytes,
        "footer_sha256": file.footer_sha256,
        "rows": file.rows,
        "entries": file.entries,
        "archived_at_ms": cold.archived_at_ms,
        "hot": cold.is_hot,
        "ledger": cold.ledger_left,
    }
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()


def decode_cold(data: bytes) -> ColdSegment:
    """Raises `DamagedMetadata`; also for a version that is newer than this program."""
    try:
        fields = json.loads(utf8(data, _WHAT))
    except ValueError as error:
        raise DamagedMetadata(f"{_WHAT}: it is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise DamagedMetadata(f"{_WHAT}: it is no JSON object: {shown(data)}")
    version = _typed(fields, "version", int)
    if version != VERSION:
        raise DamagedMetadata(
            f"{_WHAT}: version {version} is not known",
            hint="It was written by a newer Quire: read the stream with that one.",
            version=version,
        )
    left = None if fields.get("ledger") is None else LedgerId(_typed(fields, "ledger", int))
    with reading(_WHAT):
        file = ColdFile(
            _typed(fields, "root", str),
            _typed(fields, "file", str),
            _typed(fields, "bytes", int),
            _typed(fields, "sha256", str),
            _typed(fields, "footer_bytes", int),
            _typed(fields, "footer_sha256", str),
            _typed(fields, "rows", int),
            _typed(fields, "entries", int),
        )
        segment = decode_segment(_typed(fields, "segment", str).encode())
        return ColdSegment(segment, file, _typed(fields, "archived_at_ms", int), _typed(fields, "hot", bool), left)


def _typed(fields: dict[str, Any], name: str, kind: type[Any]) -> Any:
    found = fields.get(name)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise DamagedMetadata(f"{_WHAT}: {name!r} is missing, or no {kind.__name__}: {shown(found)}")
    return found
