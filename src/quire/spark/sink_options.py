"""What a write to a stream was asked to do: its options, and its columns.

uri, stream            where to (`.save("orders")` names the stream, too)
mode                   auto, staged or inline: see `quire.spark.sink`
sinkId                 who writes, for a streaming query: another checkpoint goes on under the same id
txnId                  the name of a batch write: one that is in the stream already is not written again
orderBy                the column that records are in order of; without it they are as partitioned
payload, txid          names of the columns, if they are others
createStream           whether a missing stream is created (true)
lockTimeout            seconds to wait for another writer of the stream (30)
stagedTtl              seconds after which ledgers of lost attempts are deleted (86400)
inlineBytes            how large a batch may be that goes into the stream as one entry (262144)
compression            none or lz4
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from quire.codec.stream.limits import RECORDS_BYTES_MAX
from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument
from quire.spark.client_cache import direct_uri
from quire.spark.option_names import given_options, log_uri, with_tables
from quire.spark.schema import TYPES
from quire.stream.staging import STAGED_TTL_S

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Mode = Literal["auto", "staged", "inline"]

_MODES: Final = ("auto", "staged", "inline")
_TAG_BYTES: Final = 4096  # Room for what is stored beside the records of an inline batch.
INLINE_BYTES_MAX: Final = RECORDS_BYTES_MAX - _TAG_BYTES
_INLINE_BYTES: Final = 256 << 10
_PAYLOADS: Final = ("payload", "value")
_HINT: Final = 'Choose them: df.select("payload") or df.select("payload", "txid").'
_SQL: Final = "In SQL, give the view or table that is written the option columns 'payload', or 'txid,payload'."


class Columns(NamedTuple):
    """Where a frame has what a record is made of."""

    payload: str
    txid: str | None
    order_by: str | None


class SinkOptions(NamedTuple):
    """Checked, and picklable."""

    uri: str
    stream: str
    mode: Mode
    sink_id: str
    transaction: str
    creates: bool
    lock_timeout_s: float
    staged_ttl_s: float
    inline_bytes: int
    compression: str | None
    columns: Columns

    @property
    def overrides(self) -> dict[str, Any]:
        """Settings of the stream that these options change."""
        changed: dict[str, Any] = {"lock_timeout_s": self.lock_timeout_s, "create_if_missing": self.creates}
        return changed if self.compression is None else {**changed, "compression": self.compression}


def sink_options(options: Mapping[str, str], schema: "StructType", *, overwrite: bool) -> SinkOptions:
    """Raises `InvalidArgument` for what a stream cannot do, and `InvalidName`."""
    given = given_options(options, writes=True)
    if overwrite:
        raise InvalidArgument(
            "a stream cannot be overwritten: what others have read would change under their eyes",
            hint='Write with mode("append"), or to a new stream; `quire stream truncate` hides old records.',
        )
    uri = direct_uri(log_uri(given, writes=True))
    stream = given.get("stream") or given.get("path") or ""
    if not stream:
        hint = with_tables('Say .option("stream", "orders").', given, writes=True)
        raise InvalidArgument("the option stream is missing", hint=hint)
    if any(character in stream for character in ",*"):
        raise InvalidArgument(f"{stream!r} is not one stream to write to", hint='Say .option("stream", "orders").')
    mode = given.get("mode", "auto").lower()
    if mode not in _MODES:
        raise InvalidArgument(f"there is no mode {mode!r}", hint="Use auto, staged or inline.")
    inline_bytes = _number(given, "inlinebytes", _INLINE_BYTES)
    if not 0 <= inline_bytes <= INLINE_BYTES_MAX:
        raise InvalidArgument(
            f"a batch that becomes one entry has {INLINE_BYTES_MAX} bytes at most, not {inline_bytes:.0f}",
            hint="Lower `inlineBytes`; larger batches are staged.",
        )
    compression = given["compression"].lower() if "compression" in given else None
    if compression not in (None, "none", "lz4"):
        raise InvalidArgument(f"there is no compression {compression!r}", hint="Use none or lz4.")
    return SinkOptions(
        uri=uri,
        stream=stream_name(stream),
        mode=cast(Mode, mode),
        sink_id=given.get("sinkid", ""),
        transaction=given.get("txnid", ""),
        creates=_flag(given, "createstream", default=True),
        lock_timeout_s=_number(given, "locktimeout", 30.0),
        staged_ttl_s=_number(given, "stagedttl", STAGED_TTL_S),
        inline_bytes=int(inline_bytes),
        compression=compression,
        columns=_columns(given, schema),
    )


def _columns(given: Mapping[str, str], schema: "StructType") -> Columns:
    kinds = {field.name.lower(): (field.name, field.dataType.simpleString()) for field in schema.fields}
    if not kinds:
        raise InvalidArgument("there is no column to write", hint=_HINT)
    payload = given.get("payload", "").lower()
    if payload and payload not in kinds:
        raise InvalidArgument(f"there is no column {given['payload']!r} to take payloads from", hint=_HINT)
    if not payload:
        payload = next((name for name in _PAYLOADS if name in kinds), "")
    if not payload and len(kinds) == 1:
        payload = next(iter(kinds))
    if not payload:
        raise InvalidArgument(f"none of {_shown(kinds)} is called payload or value", hint=_HINT)
    if kinds[payload][1] not in ("binary", "string"):
        raise InvalidArgument(
            f"column {kinds[payload][0]!r} is {kinds[payload][1].upper()}, and a payload is BINARY or STRING",
            hint='Turn it into text or bytes, for example with to_json(struct("*")).',
        )
    txid = given.get("txid", "txid").lower()
    if txid not in kinds:
        if "txid" in given:
            raise InvalidArgument(f"there is no column {given['txid']!r} to take txids from", hint=_HINT)
        txid = ""
    elif kinds[txid][1] != "bigint":
        raise InvalidArgument(
            f"column {kinds[txid][0]!r} is {kinds[txid][1].upper()}, and a txid is BIGINT",
            hint=f"Cast it: CAST({kinds[txid][0]} AS BIGINT). For a timestamp: unix_millis({kinds[txid][0]}).",
        )
    order_by = given.get("orderby", "").lower()
    if order_by and order_by not in kinds:
        raise InvalidArgument(f"there is no column {given['orderby']!r} to order records by", hint=_HINT)
    if extra := {name: kind for name, kind in kinds.items() if name not in (payload, txid, order_by)}:
        why = "A write goes to one stream, that of the option." if "stream" in extra else "They would be lost."
        hint = f"{why} {_HINT} {_SQL}" if all(name in TYPES for name in extra) else f"{why} {_HINT}"
        raise InvalidArgument(f"a record has no place for {_shown(extra)}", hint=hint)
    return Columns(kinds[payload][0], kinds[txid][0] if txid else None, kinds[order_by][0] if order_by else None)


def _shown(kinds: Mapping[str, tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind.upper()}" for name, kind in kinds.values())


def _number(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        number = float(given.get(name, default))
    except ValueError as error:
        raise InvalidArgument(f"{name}={given[name]!r} is no number") from error
    if not 0 <= number < float("inf"):
        raise InvalidArgument(f"{name}={given[name]!r} is out of range")
    return number


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = given.get(name, str(default)).lower()
    if text not in ("true", "false"):
        raise InvalidArgument(f"{name}={given[name]!r} is neither true nor false")
    return text == "true"
