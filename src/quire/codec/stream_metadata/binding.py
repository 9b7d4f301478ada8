"""The binding of a namespace: which ledger cluster its streams live in, and a few rules for them.

    "1" LF "BKDL" LF {"1":{"str":"zk:2181"},"2":{"str":"/ledgers"},"3":{"tf":1},...}          no LF at the end

The third line is a struct in Thrift's JSON form: field ids as keys, each value under the name of its type, truth as 1
or 0. Whatever stands after the second line break is one text, whose further line breaks mean nothing.

Invariant: what we read, Apache's parser reads too. It knows no blanks between tokens and neither `true` nor `false`,
so a binding that a person beautified is damaged here as well, and not only for half of the clients.
"""

import json
import re
from dataclasses import replace
from typing import Any, Final, Self

from quire.codec.damage import INT64_MAX, check_text, reading, shown, utf8
from quire.codec.stream_metadata.names import is_reserved
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import INITIAL_DLSN, Lssn
from quire.values import dataclass

FIRST_LSSN: Final = INITIAL_DLSN.lssn

_VERSION: Final = "1"
_TYPE: Final = "BKDL"
_WHAT: Final = "namespace binding"
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_BLANK = re.compile(r"\s")

# Field id, attribute and Thrift type, in the order in which they are written.
_FIELDS: Final = (
    ("1", "bk_servers", "str"),
    ("2", "ledgers_path", "str"),
    ("3", "sanity_check_txid", "tf"),
    ("4", "encode_region", "tf"),
    ("5", "bk_servers_for_reader", "str"),
    ("6", "dl_servers_for_writer", "str"),
    ("7", "dl_servers_for_reader", "str"),
    ("8", "acl_path", "str"),
    ("9", "first_lssn", "i64"),
    ("10", "federated", "tf"),
)


@dataclass(frozen=True, slots=True)
class NamespaceBinding:
    """A namespace's binding as stored. None stands for a field that is not there: see `resolved` for what it means.

    Servers are ZooKeeper's, `host:port` with commas: `bk_` those of the ledger cluster, `dl_` those of the namespace.
    """

    bk_servers: str
    ledgers_path: str
    sanity_check_txid: bool = True  # No program looks at it any more.
    encode_region: bool = False  # Whether segments carry the number of their writer's region.
    bk_servers_for_reader: str | None = None
    dl_servers_for_writer: str | None = None
    dl_servers_for_reader: str | None = None
    acl_path: str | None = None  # Below the namespace; None where access is not controlled.
    first_lssn: Lssn | None = None  # Of a new stream; None means 1.
    federated: bool = False

    def __post_init__(self) -> None:
        for text in (
            self.bk_servers,
            self.ledgers_path,
            self.bk_servers_for_reader,
            self.dl_servers_for_writer,
            self.dl_servers_for_reader,
            self.acl_path,
        ):
            check_text(text or "")
        if self.acl_path is not None and not is_reserved(self.acl_path):
            raise InvalidArgument(f"access control path {shown(self.acl_path)} does not begin with '.' or '<'")
        if self.first_lssn is not None and not FIRST_LSSN <= self.first_lssn <= INT64_MAX:
            raise InvalidArgument(f"{self.first_lssn} cannot number the first segment of a stream")

    def resolved(self, authority: str) -> Self:
        """With the servers that absent fields stand for. `authority` names those of the namespace's own URI."""
        writer = authority if self.dl_servers_for_writer is None else self.dl_servers_for_writer
        return replace(
            self,
            bk_servers_for_reader=self.bk_servers if self.bk_servers_for_reader is None else self.bk_servers_for_reader,
            dl_servers_for_writer=writer,
            dl_servers_for_reader=writer if self.dl_servers_for_reader is None else self.dl_servers_for_reader,
            first_lssn=FIRST_LSSN if self.first_lssn is None else self.first_lssn,
        )


def encode_binding(binding: NamespaceBinding) -> bytes:
    """The bytes of the namespace's node, field for field as Apache's programs write them."""
    struct: dict[str, dict[str, object]] = {}
    for field_id, name, kind in _FIELDS:
        value = getattr(binding, name)
        if value is None or (name == "federated" and not value):
            continue
        struct[field_id] = {kind: int(value) if kind == "tf" else value}
    text = json.dumps(struct, ensure_ascii=False, separators=(",", ":"))
    return f"{_VERSION}\n{_TYPE}\n{text}".encode()


def decode_binding(data: bytes) -> NamespaceBinding:
    """Raises `DamagedMetadata`. No bytes at all are no binding: that of a parent node counts then."""
    version, *rest = utf8(data, _WHAT).split("\n")
    if version != _VERSION:
        raise DamagedMetadata(f"{_WHAT}: the format version on line 1 should be 1, but is {shown(version)}")
    if not rest or rest[0] != _TYPE:
        raise DamagedMetadata(f"{_WHAT}: line 2 should be {_TYPE}, but is {shown(rest[0] if rest else '')}")
    struct = _struct("".join(rest[1:]))
    known = {name: _value(struct[field_id], name, kind) for field_id, name, kind in _FIELDS if field_id in struct}
    for name in ("bk_servers", "ledgers_path"):
        if name not in known:
            raise DamagedMetadata(f"{_WHAT}: it lacks {name}, which nothing can stand in for")
    with reading(_WHAT):
        return NamespaceBinding(**known)


def _struct(text: str) -> dict[str, Any]:
    try:
        struct = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedMetadata(f"{_WHAT}: line 3 is not JSON: {shown(text)}") from error
    if not isinstance(struct, dict):
        raise DamagedMetadata(f"{_WHAT}: line 3 should be a JSON object, but is {shown(text)}")
    if _BLANK.search(_STRING.sub("", text)):
        raise DamagedMetadata(f"{_WHAT}: line 3 has blanks between its parts, which Apache's parser does not read")
    return struct


def _value(typed: object, name: str, kind: str) -> Any:
    value = typed.get(kind) if isinstance(typed, dict) and len(typed) == 1 else None
    if kind == "str" and isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool) and (kind == "i64" or (kind == "tf" and value in (0, 1))):
        return bool(value) if kind == "tf" else value
    raise DamagedMetadata(f'{_WHAT}: {name} should be {{"{kind}":...}}, but is {shown(typed)}')
