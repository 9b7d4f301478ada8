"""Records as commands print them: payloads a line each, perhaps behind their places, or JSON."""

import json
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

from quire.cli.output import write_bytes
from quire.codec.stream.records import LogRecord
from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class RecordOutput:
    """How records are printed."""

    as_json: bool = False
    with_dlsn: bool = False
    """Before each payload, with a tab between them."""
    end: bytes = b"\n"

    def print(self, records: Iterable[LogRecord], *, at_once: bool) -> None:
        """To standard output; with `at_once` whoever reads that sees them now. Raises what `write_bytes` raises."""
        write_bytes(self.encoded(records), at_once=at_once)

    def encoded(self, records: Iterable[LogRecord]) -> bytes:
        """Records as they are printed."""
        return b"".join(map(self._json if self.as_json else self._placed if self.with_dlsn else self._plain, records))

    def _plain(self, record: LogRecord) -> bytes:
        return record.payload + self.end

    def _placed(self, record: LogRecord) -> bytes:
        return b"%s\t%s%s" % (str(record.dlsn).encode(), record.payload, self.end)

    def _json(self, record: LogRecord) -> bytes:
        told: dict[str, Any] = {"dlsn": str(record.dlsn), "txid": record.txid, **payload_facts(record.payload)}
        return json.dumps(told, ensure_ascii=False).encode() + b"\n"


def payload_facts(payload: bytes) -> dict[str, str]:
    """A payload for JSON: text if it is text, else base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": b64encode(payload).decode()}
