"""The values of the gateway's OpenAPI description: bodies, answers, and what each error status means."""

from typing import Any, Final

from quire.codec.pb import quire_v1_pb2 as pb
from quire.codec.stream_metadata.names import NEW_BYTES_MAX
from quire.proxy.gateway.answers import TRUNCATIONS
from quire.proxy.gateway.limits import RECORD_BYTES_MAX, RECORDS_MAX, TXID_LAST
from quire.proxy.gateway.problems import HTTP_CODES, RETRY_AFTER_MS

_Object = dict[str, Any]


def ref(schema: str) -> _Object:
    return {"$ref": f"#/components/schemas/{schema}"}


# A part of a name is neither empty, nor `.` or `..`; the first one does not begin with a dot. Which characters beyond
# ASCII are forbidden stands in the text: patterns with so large sets are slow in programs that make names from them.
_AFTER_DOT: Final = r"[^\u0000-\u0020./<>\u007f]"
_CHARACTER: Final = r"[^\u0000-\u0020/<>\u007f]"
_PART: Final = rf"({_AFTER_DOT}{_CHARACTER}*|\.{_AFTER_DOT}{_CHARACTER}*|\.\.{_CHARACTER}+)"
_NUMBER: Final = "(0|[1-9][0-9]{0,17})"

STREAM_NAME: Final[_Object] = {
    "type": "string",
    "pattern": rf"^{_AFTER_DOT}{_CHARACTER}*(/{_PART})*$",
    "description": "Beyond ASCII, control characters, private ones and those outside of the basic plane are refused. A "
    f"name that is to be created has no character that cannot be seen, and at most {NEW_BYTES_MAX} bytes as UTF-8.",
    "examples": ["orders", "eu/orders"],
}
NAME: Final[_Object] = {"type": "string", "pattern": rf"^{_AFTER_DOT}{_CHARACTER}*$"}
DLSN: Final[_Object] = {"type": "string", "pattern": f"^{_NUMBER}:{_NUMBER}:{_NUMBER}$", "examples": ["3:17:0"]}
EVENT_ID: Final[_Object] = {"type": "string", "pattern": f"^({_NUMBER}:{_NUMBER}:{_NUMBER})?$", "examples": ["3:17:0"]}
_PLACE: Final[_Object] = {"type": "string", "pattern": "^[0-9]+:-?[0-9]+:-?[0-9]+$", "examples": ["3:17:0"]}
POSITION: Final[_Object] = {
    "type": "string",
    "anyOf": [
        {"enum": ["earliest", "latest"]},
        {"pattern": f"^>?{_NUMBER}:{_NUMBER}:{_NUMBER}$", "description": "A place, or with `>` what is behind it."},
        {"pattern": f"^tx:{_NUMBER}$", "description": "The first record whose txid is not below."},
        {"pattern": "^t:[0-9]{1,16}$", "description": "A moment, in milliseconds since 1970."},
        {"pattern": "^t:[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])(T[01][0-9]:[0-5][0-9]:[0-5][0-9]Z)?$"},
        {"format": "date-time", "pattern": "^t:.+T.+", "description": "A moment as in RFC 3339, behind `t:`."},
    ],
    "examples": ["earliest", "latest", "3:17:0", ">3:17:0", "tx:1700000000000", "t:2026-01-01T00:00:00Z"],
}
_TXID: Final[_Object] = {"type": "integer", "minimum": 0, "maximum": TXID_LAST}


def _object(_required: str, _closed: bool = False, **properties: _Object) -> _Object:
    closed = {"additionalProperties": False} if _closed else {}
    required = {"required": _required.split()} if _required else {}
    return {"type": "object", **required, "properties": properties, **closed}


def _maybe(schema: _Object) -> _Object:
    return {"anyOf": [schema, {"type": "null"}]}


_TEXT: Final[_Object] = {"type": "string"}
_B64: Final[_Object] = {"type": "string", "contentEncoding": "base64", "pattern": "^([A-Za-z0-9+/]{4})*$"}
_BASE64: Final[_Object] = {"type": "string", "contentEncoding": "base64"}
_INTEGER: Final[_Object] = {"type": "integer"}
_TRUTH: Final[_Object] = {"type": "boolean"}

SCHEMAS: Final[_Object] = {
    "Records": {
        **_object(
            "records",
            True,
            records={"type": "array", "minItems": 1, "items": ref("NewRecord")},
            txid={**_TXID, "description": "Of all records that have none of their own."},
        ),
        "description": f"At most {RECORDS_MAX} records of at most {RECORD_BYTES_MAX} bytes each. Either all have a "
        "txid, or none has. Txids never decrease along a stream.",
    },
    "NewRecord": {
        "oneOf": [
            _object("text", True, text=_TEXT, txid=_TXID),
            _object("b64", True, b64=_B64, txid=_TXID),
        ]
    },
    "Appended": _object(
        "dlsn last_dlsn count duplicate",
        dlsn={**_maybe(_PLACE), "description": "Of the first record; null if it was there before, and is forgotten."},
        last_dlsn=_maybe(_PLACE),
        count={"type": "integer", "minimum": 1},
        duplicate={**_TRUTH, "description": "Whether all of them were there before."},
    ),
    "Fetched": _object(
        "records next end",
        records={"type": "array", "items": ref("Record")},
        next={**_PLACE, "description": "Where to go on."},
        end={**_TRUTH, "description": "Whether the stream was sealed, and there is nothing behind these records."},
    ),
    "Record": {
        **_object("dlsn txid", dlsn=_PLACE, txid=_INTEGER, text=_TEXT, b64=_BASE64),
        "oneOf": [{"required": ["text"]}, {"required": ["b64"]}],
    },
    "Event": {
        **_object("", id=_PLACE, event={"enum": ["b64", "gap", "end", "failure"]}, data=_TEXT, retry=_INTEGER),
        "description": "One server-sent event.",
    },
    "Streams": _object(
        "streams next_page",
        streams={"type": "array", "items": _TEXT},
        next_page={**_maybe(_TEXT), "description": "For the next request; null if there are no more."},
    ),
    "Stream": _object(
        "stream sealed owner records first_dlsn last_dlsn first_txid last_txid segments subscriptions",
        stream=_TEXT,
        sealed=_TRUTH,
        owner={**_maybe(_TEXT), "description": "Who holds the lock of the stream's writers."},
        records={**_INTEGER, "description": "In completed segments."},
        first_dlsn=_maybe(_PLACE),
        last_dlsn=_maybe(_PLACE),
        first_txid=_maybe(_INTEGER),
        last_txid=_maybe(_INTEGER),
        segments={"type": "array", "items": ref("Segment")},
        subscriptions={"type": "object", "additionalProperties": _maybe(_PLACE)},
    ),
    "Segment": _object(
        "lssn ledger completed truncated records first_dlsn last_dlsn first_txid last_txid completed_at_ms",
        lssn=_INTEGER,
        ledger=_INTEGER,
        completed=_TRUTH,
        truncated={"enum": list(TRUNCATIONS.values())},
        records=_maybe(_INTEGER),
        first_dlsn=_maybe(_PLACE),
        last_dlsn=_maybe(_PLACE),
        first_txid=_INTEGER,
        last_txid=_maybe(_INTEGER),
        completed_at_ms=_maybe(_INTEGER),
    ),
    "Created": _object("stream created", stream=_TEXT, created=_TRUTH),
    "Truncation": {
        "oneOf": [_object("dlsn", True, dlsn=DLSN), _object("txid", True, txid=_TXID)],
        "description": "What is before it is hidden.",
    },
    "Truncated": _object("stream first_dlsn", stream=_TEXT, first_dlsn=_PLACE),
    "Sealed": _object("stream sealed", stream=_TEXT, sealed={"const": True}),
    "Owner": _object("stream owner", stream=_TEXT, owner=_maybe(_TEXT)),
    "Named": _object("stream", stream=_TEXT),
    "Commit": _object("position", True, position=DLSN, reset={**_TRUTH, "default": False}),
    "Position": _object("stream subscription position", stream=_TEXT, subscription=_TEXT, position=_maybe(_PLACE)),
    "Problem": _object(
        "code message hint applied retry_after_ms",
        code={"enum": sorted({*pb.Code.keys()[1:], *HTTP_CODES.values(), "NO_SUCH_NAMESPACE"})},
        message=_TEXT,
        hint={**_TEXT, "description": "What to do about it; may be empty."},
        applied={"enum": ["NO", "UNKNOWN"], "description": "Whether the request may have changed anything."},
        retry_after_ms={"type": "integer", "minimum": 0, "description": "0 if nothing is known about when."},
        owner={**_TEXT, "description": "Who has the stream, where that is the reason."},
        earliest={**_PLACE, "description": "The first place that is left, where others were truncated."},
    ),
}

_MEANINGS: Final = {
    "400": "The request is wrong in itself.",
    "401": "The caller did not say, or could not prove, who it is.",
    "403": "The caller may not do this, or asks by a name that is not known here, or is a page of another site.",
    "404": "There is no such path, namespace or stream.",
    "408": "The body did not arrive in time.",
    "409": "The state of the stream forbids it: somebody else writes it, or txids would decrease.",
    "410": "The stream has ended.",
    "413": "The body, or a record in it, is too large.",
    "415": "The body is encoded in a way that is not decoded here.",
    "416": "The position was truncated, or cannot be reached yet.",
    "429": "The gateway, or the stream's owner, has too much to do.",
    "500": "Something went wrong inside, or data is damaged.",
    "501": "What is behind this gateway cannot do it.",
    "503": "Not possible now; the same request may succeed later.",
    "504": "Not answered in time. It may have happened.",
}


def _problem(status: str, text: str) -> _Object:
    answer: _Object = {"description": text, "content": {"application/json": {"schema": ref("Problem")}}}
    if status in ("429", "503"):
        after = {"type": "integer", "minimum": 1, "examples": [RETRY_AFTER_MS // 1000]}
        answer["headers"] = {"Retry-After": {"description": "Seconds.", "required": True, "schema": after}}
    return answer


RESPONSES: Final[_Object] = {status: _problem(status, text) for status, text in _MEANINGS.items()}
