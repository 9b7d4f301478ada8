"""The description of the gateway for programs, as OpenAPI 3.1. Committed as `openapi.json`, and served from there.

    python -m quire.proxy.gateway.openapi > src/quire/proxy/gateway/openapi.json

It is written down here, and not derived from the handlers: a description that follows the code cannot contradict it. A
test runs it against a gateway, and another sees to it that the file and this module are the same.
"""

import json
from typing import Any, Final

from quire.proxy.gateway.limits import (
    BODY_BYTES_MAX,
    FETCH_BYTES,
    FETCH_BYTES_MAX,
    FETCH_RECORDS,
    PAGE_STREAMS,
    PAGE_STREAMS_MAX,
    RECORD_BYTES_MAX,
    RECORDS_MAX,
    WAIT_MS,
    WAIT_MS_MAX,
)
from quire.proxy.gateway.openapi_schemas import EVENT_ID, NAME, POSITION, RESPONSES, SCHEMAS, STREAM_NAME, ref

_Object = dict[str, Any]

_NAMESPACE: Final = "/v1/{namespace}/streams"
_STREAM: Final = f"{_NAMESPACE}/{{stream}}"

_ANY: Final = ("400", "401", "403", "404", "429", "500", "503")  # What any request may be answered with.
_WRITES: Final = ("408", "409", "413")
_CHANGES: Final = (*_WRITES, "410", "415", "504")

_TAGS: Final = {
    "records": "Appending records, and reading them.",
    "streams": "Which streams there are, and what becomes of them.",
    "ownership": "Who writes a stream.",
    "subscriptions": "Named positions, kept with a stream.",
}


def description() -> _Object:
    """All of it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire gateway",
            "version": "1",
            "summary": "Streams of records over HTTP, JSON and server-sent events.",
            "description": "A slash in the name of a stream is sent as %2F. Parameters that are not listed are "
            "refused. Every error has the form of Problem, and says whether the request may have changed anything.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "paths": {
            "/v1/openapi.json": {
                "get": {
                    "operationId": "describeGateway",
                    "summary": "This description.",
                    "responses": {
                        "200": _json("The description.", {"type": "object", "required": ["openapi", "paths"]}),
                        **_errors("403", "429", "500"),
                    },
                }
            },
            _NAMESPACE: _path("namespace", get=_list_streams()),
            _STREAM: _path("namespace", "stream", get=_get_stream(), put=_create(), delete=_delete()),
            f"{_STREAM}/records": _path("namespace", "stream", post=_append(), get=_fetch()),
            f"{_STREAM}/tail": _path("namespace", "stream", get=_tail()),
            f"{_STREAM}/owner": _path("namespace", "stream", get=_owner()),
            f"{_STREAM}/subscriptions/{{name}}": _path(
                "namespace", "stream", "name", get=_position(), put=_commit(), delete=_forget()
            ),
            f"{_STREAM}:truncate": _path("namespace", "stream", post=_truncate()),
            f"{_STREAM}:seal": _path("namespace", "stream", post=_seal()),
            f"{_STREAM}:heartbeat": _path("namespace", "stream", post=_heartbeat()),
            f"{_STREAM}:release": _path("namespace", "stream", post=_release()),
        },
        "components": {
            "schemas": SCHEMAS,
            "responses": RESPONSES,
            "parameters": {
                "namespace": _parameter("namespace", "path", {"type": "string", "minLength": 1}, "Which namespace."),
                "stream": _parameter("stream", "path", STREAM_NAME, "Which stream."),
                "name": _parameter("name", "path", NAME, "Which subscription."),
            },
        },
    }


# --- Records


def _append() -> _Object:
    return {
        "operationId": "appendRecords",
        "tags": ["records"],
        "summary": "Append records.",
        "description": "They are durable when the answer comes, follow one another in the stream, and are all there or "
        "none of them is. A stream that is not there is created, unless the gateway's client is told otherwise.",
        "parameters": [
            _parameter(
                "Idempotency-Key",
                "header",
                {"type": "string", "pattern": "^[!-.0-~]{1,128}/[1-9][0-9]{0,17}$", "example": "billing/42"},
                "Who sends, and the number of the first record among all that it sends to this stream, from 1 on. "
                "Records that are there already are not appended again. Needs write proxies behind the gateway.",
            )
        ],
        "requestBody": {
            "required": True,
            "description": f"One record of at most {RECORD_BYTES_MAX} bytes, whatever its type, but for JSON and "
            f"NDJSON: those hold several, and may have {BODY_BYTES_MAX} bytes.",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "text/plain": {"schema": {"type": "string"}},
                "application/json": {
                    "schema": ref("Records"),
                    "example": {"records": [{"text": "paid"}, {"b64": "AP8="}]},
                },
                "application/x-ndjson": {
                    "schema": {"type": "string", "pattern": "[!-~]", "description": "One record for each line."},
                    "example": '{"paid": 1}\n{"paid": 2}\n',
                },
            },
        },
        "responses": {
            "200": _json("The records are in the stream.", ref("Appended")),
            **_errors(*_ANY, *_CHANGES, "501"),
        },
    }


def _fetch() -> _Object:
    return {
        "operationId": "readRecords",
        "tags": ["records"],
        "summary": "Read records, and wait for them if there are none.",
        "description": "Answers as soon as there is a record, with all that is there then. The answer may have fewer "
        "records than asked for, or none; `next` is where to go on.",
        "parameters": [
            _parameter("from", "query", {**POSITION, "default": "earliest"}, "Where to begin."),
            _number("limit", "At most so many records.", FETCH_RECORDS, least=1, most=RECORDS_MAX),
            _number("max_bytes", "At most so many bytes, or one record.", FETCH_BYTES, least=1, most=FETCH_BYTES_MAX),
            _number("wait_ms", "How long to wait for the first record.", WAIT_MS, least=0, most=WAIT_MS_MAX),
            _as_parameter(),
            _truncated_parameter("fail"),
        ],
        "responses": {"200": _json("Records, or none.", ref("Fetched")), **_errors(*_ANY, "416")},
    }


def _tail() -> _Object:
    return {
        "operationId": "tailRecords",
        "tags": ["records"],
        "summary": "Follow a stream as server-sent events.",
        "description": "Each record is an event whose id is its place. Other events: `b64`, a record that is no text "
        "where text was asked for; `gap` {from, to}, records that were truncated; `end` {next}, the stream was sealed; "
        "`failure`, a Problem. A comment comes when nothing else did for 15 s. The gateway may end it at any time: the "
        "client comes back with Last-Event-ID.",
        "parameters": [
            _parameter("from", "query", {**POSITION, "default": "latest"}, "Where to begin."),
            _as_parameter(),
            _truncated_parameter("skip"),
            _parameter(
                "Last-Event-ID",
                "header",
                EVENT_ID,
                "The last event that the client had: goes on behind it, whatever `from` says.",
            ),
        ],
        "responses": {
            "200": {"description": "Events.", "content": {"text/event-stream": {"schema": ref("Event")}}},
            **_errors(*_ANY, "416"),
        },
    }


# --- Streams


def _list_streams() -> _Object:
    return {
        "operationId": "listStreams",
        "tags": ["streams"],
        "summary": "The streams of a namespace, by name.",
        "parameters": [
            _parameter("prefix", "query", {"type": "string"}, "Only those whose names begin like this."),
            _parameter("page", "query", {"type": "string"}, "`next_page` of the page before."),
            _number("limit", "At most so many.", PAGE_STREAMS, least=1, most=PAGE_STREAMS_MAX),
        ],
        "responses": {"200": _json("A page.", ref("Streams")), **_errors(*_ANY)},
    }


def _get_stream() -> _Object:
    return {
        "operationId": "getStream",
        "tags": ["streams"],
        "summary": "What is known of a stream.",
        "responses": {"200": _json("The stream.", ref("Stream")), **_errors(*_ANY)},
    }


def _create() -> _Object:
    created = _json("It was created.", ref("Created"))
    created["links"] = {
        operation: {"operationId": operation, "parameters": {"stream": "$request.path.stream"}}
        for operation in ("appendRecords", "readRecords", "getStream", "truncateStream", "sealStream", "deleteStream")
    }
    return {
        "operationId": "createStream",
        "tags": ["streams"],
        "summary": "Create a stream; fine if it is there.",
        "responses": {
            "200": _json("It was there.", ref("Created")),
            "201": created,
            **_errors(*_ANY, *_WRITES),
        },
    }


def _delete() -> _Object:
    return {
        "operationId": "deleteStream",
        "tags": ["streams"],
        "summary": "Delete a stream with all its records, once nobody else writes it.",
        "responses": {"204": {"description": "It is gone."}, **_errors(*_ANY, "409")},
    }


def _truncate() -> _Object:
    return {
        "operationId": "truncateStream",
        "tags": ["streams"],
        "summary": "Hide records before a place, or with lower txids, for ever.",
        "requestBody": _body("Truncation", {"dlsn": "3:17:0"}),
        "responses": {
            "200": _json("It is truncated, or was.", ref("Truncated")),
            **_errors(*_ANY, *_WRITES, "415", "416"),
        },
    }


def _seal() -> _Object:
    return {
        "operationId": "sealStream",
        "tags": ["streams"],
        "summary": "End a stream: nothing can be appended any more, and readers come to an end. For ever.",
        "responses": {"200": _json("It has ended.", ref("Sealed")), **_errors(*_ANY, *_WRITES, "504")},
    }


# --- Ownership


def _owner() -> _Object:
    return {
        "operationId": "getOwner",
        "tags": ["ownership"],
        "summary": "Who writes a stream.",
        "responses": {"200": _json("The owner, or null.", ref("Owner")), **_errors(*_ANY)},
    }


def _heartbeat() -> _Object:
    return {
        "operationId": "acquireStream",
        "tags": ["ownership"],
        "summary": "Have a proxy, or this gateway, own the stream, and prove that it can be written.",
        "responses": {
            "200": _json("It is owned, and can be written.", ref("Owner")),
            **_errors(*_ANY, *_WRITES, "410", "504"),
        },
    }


def _release() -> _Object:
    return {
        "operationId": "releaseStream",
        "tags": ["ownership"],
        "summary": "Have the owner, a proxy or this gateway, give the stream up. The next append takes it again.",
        "responses": {"200": _json("It is given up.", ref("Named")), **_errors(*_ANY, *_WRITES)},
    }


# --- Subscriptions


def _position() -> _Object:
    return {
        "operationId": "getPosition",
        "tags": ["subscriptions"],
        "summary": "Where a subscription goes on; null if it never said so.",
        "responses": {"200": _json("The position.", ref("Position")), **_errors(*_ANY)},
    }


def _commit() -> _Object:
    return {
        "operationId": "commitPosition",
        "tags": ["subscriptions"],
        "summary": "Store where a subscription goes on. A later position that is stored stays, unless `reset`.",
        "requestBody": _body("Commit", {"position": "3:17:1"}),
        "responses": {
            "200": _json("What is stored now.", ref("Position")),
            **_errors(*_ANY, *_WRITES, "415", "416"),
        },
    }


def _forget() -> _Object:
    return {
        "operationId": "deleteSubscription",
        "tags": ["subscriptions"],
        "summary": "Forget a subscription; fine if there is none.",
        "responses": {"204": {"description": "It is forgotten."}, **_errors(*_ANY, "409")},
    }


# --- Parts


def _path(*parameters: str, **operations: _Object) -> _Object:
    return {"parameters": [{"$ref": f"#/components/parameters/{name}"} for name in parameters], **operations}


def _parameter(name: str, place: str, schema: _Object, text: str) -> _Object:
    required = {"required": True} if place == "path" else {}
    return {"name": name, "in": place, **required, "description": text, "schema": schema}


def _number(name: str, text: str, default: int, *, least: int, most: int) -> _Object:
    return _parameter(name, "query", {"type": "integer", "minimum": least, "maximum": most, "default": default}, text)


def _as_parameter() -> _Object:
    text = "How records are written. What is no text is base64 in any case."
    return _parameter("as", "query", {"type": "string", "enum": ["b64", "text"], "default": "b64"}, text)


def _truncated_parameter(default: str) -> _Object:
    text = "What to do if records from there on were truncated: refuse, or go on with what is left."
    return _parameter("truncated", "query", {"type": "string", "enum": ["fail", "skip"], "default": default}, text)


def _body(schema: str, example: _Object) -> _Object:
    return {"required": True, "content": {"application/json": {"schema": ref(schema), "example": example}}}


def _json(text: str, schema: _Object) -> _Object:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _errors(*statuses: str) -> _Object:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def main() -> None:
    print(json.dumps(description(), indent=2, ensure_ascii=False))  # noqa: T201  # For a file.


if __name__ == "__main__":
    main()
