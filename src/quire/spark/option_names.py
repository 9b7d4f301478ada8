"""Which options source and sink have, and what is told to those who write another name.

Spark hands options on as text, in small letters, and its own among ours. A view may be read and written, so each
direction takes the names of the other one.

Invariant NothingIgnored: a name that is not known here is an error. An option that is ignored answers wrongly without a
word: a misspelled `txnId` would write a batch twice.
"""

import difflib
import os
from collections.abc import Mapping
from typing import Final

from quire.errors import InvalidArgument

FILTERING: Final = "_pushdown"  # For `quire.spark.sql` only, which knows that a frame is scanned once.

_SOURCE: Final = (
    "uri",
    "stream",
    "start",
    "end",
    "failOnDataLoss",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "partitionBytes",
    "minPartitions",
    "columns",
    "readPatience",
)
_SINK: Final = (
    "mode",
    "sinkId",
    "txnId",
    "orderBy",
    "payload",
    "txid",
    "createStream",
    "lockTimeout",
    "stagedTtl",
    "inlineBytes",
    "compression",
)
_SPARKS: Final = (  # What Spark adds, or reads itself and passes on.
    "path",
    "paths",
    "checkpointlocation",
    "queryname",
    "asyncprogresstrackingenabled",
    "asyncprogresstrackingcheckpointintervalms",
)
_OURS: Final = {name.lower(): name for name in (*_SOURCE, *_SINK)}
_KNOWN: Final = frozenset((*_OURS, *_SPARKS, FILTERING))
_START: Final = (
    'start: "earliest", "latest", a place such as "3:17:0", a txid "tx:17", or a time "t:2026-01-01T00:00:00Z"'
)
_END: Final = "end, which takes what start takes"
_KAFKAS: Final = {
    "startingoffsets": _START,
    "startingoffsetsbytimestamp": _START,
    "startingtimestamp": _START,
    "endingoffsets": _END,
    "endingoffsetsbytimestamp": _END,
    "endingtimestamp": _END,
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "subscribe": "stream, which takes several names with commas",
    "subscribepattern": 'stream, which takes patterns such as "orders-*"',
    "assign": "stream",
    "topic": "stream",
    "kafka.bootstrap.servers": 'uri: "distributedlog://zk1:2181/ns", for example',
}

_URI: Final = 'Say where the log is: .option("uri", "file:./data"), or distributedlog://zk1:2181/ns.'
_READ_TABLE: Final = (
    "In SQL: CREATE TABLE … USING quire OPTIONS (uri '…', stream '…'), without a list of columns: with one, Spark "
    "keeps the options from readers. The option columns chooses some."
)
_WRITTEN_TABLE: Final = (
    "Spark keeps the options of a table from those who write it. Give them to the statement: "
    "INSERT INTO … WITH (uri '…', stream '…'). "
    "Or to a view: CREATE TEMPORARY VIEW … USING quire OPTIONS (uri '…', stream '…', columns 'payload')."
)
_PUSHDOWN: Final = (
    "Filter as always. To read less, say start and end, or use quire.spark.sql.query_once, which has filters choose "
    "where a statement reads a stream once."
)


def given_options(options: Mapping[str, str], *, writes: bool) -> dict[str, str]:
    """What was said, by names in small letters. Raises `InvalidArgument` for a name that there is not."""
    given = {name.lower(): value for name, value in options.items()}
    for name in given:
        if name not in _KNOWN:
            raise _unknown(name, writes=writes)
    return given


def log_uri(given: Mapping[str, str], *, writes: bool) -> str:
    """Where the log is. Raises `InvalidArgument`."""
    uri = given.get("uri") or os.environ.get("QUIRE_URI")
    if not uri:
        raise InvalidArgument("the option uri is missing", hint=with_tables(_URI, given, writes=writes))
    return uri


def with_tables(hint: str, given: Mapping[str, str], *, writes: bool) -> str:
    """The hint, and how it is said in SQL if nothing was given: Spark may know options, and keep them for itself."""
    if any(name in _OURS for name in given):
        return hint
    return f"{hint} {_WRITTEN_TABLE if writes else _READ_TABLE}"


def _unknown(name: str, *, writes: bool) -> InvalidArgument:
    if name == "pushdown":
        # Spark 4.3 keeps what filters chose with the frame: another scan of it would get the same, without a word.
        return InvalidArgument(
            "there is no option 'pushdown': a frame that is used twice would lack rows", hint=_PUSHDOWN, option=name
        )
    if name in _KAFKAS:
        return InvalidArgument(
            f"there is no option {name!r}, which is one of Kafka's", hint=f"Use {_KAFKAS[name]}.", option=name
        )
    near = difflib.get_close_matches(name, _OURS, 2, 0.75)
    near.sort(key=lambda each: sorted(each) != sorted(name))  # Letters that changed places are the likeliest slip.
    own = ", ".join(("uri", "stream", *_SINK) if writes else _SOURCE)
    hint = f"Did you mean {' or '.join(_OURS[each] for each in near)}?" if near else f"There are: {own}."
    return InvalidArgument(f"there is no option {name!r}", hint=hint, option=name)
