"""Records to append, out of what a command is given: lines, whole files, or JSON.

A record as JSON is what `quire read --json` prints, so that a stream can be copied, or changed on its way, with txids:

    {"txid": 7, "payload": "text"}
    {"payload_base64": "AP8="}

Without a txid a record gets the time. A `dlsn` is passed over: where a record stands is for its stream to say.
"""

import asyncio
import binascii
import json
from base64 import b64decode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

from quire.cli.stdin import STDIN, input_lines, shown_name
from quire.codec.stream.limits import PAYLOAD_BYTES_MAX, TXID_MAX
from quire.errors import InvalidArgument, RecordTooLarge, TxidOutOfOrder
from quire.values import dataclass

_JSON_BYTES_MAX: Final = 8 * PAYLOAD_BYTES_MAX  # Escapes take up to six bytes for one of the payload.
_KEYS: Final = frozenset({"dlsn", "txid", "payload", "payload_base64"})
_HINT: Final = (
    """Write {"txid": 7, "payload": "text"} or {"payload_base64": "AP8="}, a line each; txid may be absent."""
)


class Batch(NamedTuple):
    """Records that are appended together. All of them have a txid, or none has."""

    payloads: list[bytes]
    txids: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class RecordInput:
    """Where records come from, and how."""

    files: Sequence[str] = (STDIN,)
    is_json: bool = False
    is_whole: bool = False
    """Each file is one record."""
    ends_with_nul: bool = False
    first_txid: int | None = None
    """Of the first record; the others count on from there."""

    def __post_init__(self) -> None:
        if self.is_json + self.is_whole + self.ends_with_nul > 1:
            raise InvalidArgument("records are JSON, whole files, or end with a NUL", hint="Give one of these options.")
        if self.is_json and self.first_txid is not None:
            raise InvalidArgument("records as JSON have txids of their own", hint="Leave --txid away.")
        if self.first_txid is not None and not 0 <= self.first_txid < TXID_MAX:
            raise InvalidArgument(f"{self.first_txid} is no txid", hint=f"Txids run from 0 to {TXID_MAX - 1}.")

    async def batches(self, interrupted: asyncio.Event) -> AsyncGenerator[Batch]:
        """As they come, until `interrupted` is set. Raises `InvalidArgument`, `RecordTooLarge` and `TxidOutOfOrder`,
        after all that comes before the culprit.
        """
        end = None if self.is_whole else b"\0" if self.ends_with_nul else b"\n"
        limit = _JSON_BYTES_MAX if self.is_json else PAYLOAD_BYTES_MAX
        txid = self.first_txid
        for name in self.files:
            reading = _JsonRecords(name)
            async with aclosing(input_lines(interrupted, name, end=end, line_bytes_max=limit)) as chunks:
                async for lines in chunks:
                    if self.is_json:
                        for batch in reading.batches(lines):
                            yield batch
                        reading.check()
                    elif txid is None:
                        yield Batch(lines)
                    else:
                        yield Batch(lines, range(txid, txid + len(lines)))
                        txid += len(lines)
            if interrupted.is_set():
                return


class _JsonRecords:
    """Reads a file of JSON, line by line."""

    def __init__(self, name: str) -> None:
        self._name, self._number = shown_name(name), 0
        self._last_txid: int | None = None
        self._problem: InvalidArgument | RecordTooLarge | TxidOutOfOrder | None = None

    def batches(self, lines: list[bytes]) -> list[Batch]:
        """The records of these lines, up to one that is none. Empty lines are none, and no harm."""
        found: list[Batch] = []
        payloads: list[bytes] = []
        txids: list[int] = []
        for line in lines:
            self._number += 1
            if not line.strip():
                continue
            try:
                txid, payload = self._parsed(line)
            except (InvalidArgument, RecordTooLarge, TxidOutOfOrder) as error:
                self._problem = error
                break
            if payloads and (txid is None) == bool(txids):
                found.append(Batch(payloads, txids or None))
                payloads, txids = [], []
            payloads.append(payload)
            if txid is not None:
                txids.append(txid)
        if payloads:
            found.append(Batch(payloads, txids or None))
        return found

    def check(self) -> None:
        """Raise what is wrong with the first line that is no record."""
        if self._problem is not None:
            raise self._problem

    def _parsed(self, line: bytes) -> tuple[int | None, bytes]:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._invalid(f"it is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise self._invalid("it is no JSON object")
        if strange := sorted(set(value) - _KEYS):
            raise self._invalid(f"{strange[0]!r} is nothing that a record has")
        return self._txid(value.get("txid")), self._payload(value)

    def _txid(self, txid: object) -> int | None:
        if txid is None:
            self._last_txid = None  # The time, which may be any: the writer knows.
            return None
        if not isinstance(txid, int) or isinstance(txid, bool):
            raise self._invalid(f"{txid!r} is no txid")
        if not max(0, self._last_txid or 0) <= txid < TXID_MAX:
            before = "" if self._last_txid is None else f" behind {self._last_txid}"
            raise TxidOutOfOrder(f"{self._where}: {txid} is no txid{before}", txid=txid)
        self._last_txid = txid
        return txid

    def _payload(self, value: dict[str, object]) -> bytes:
        text, encoded = value.get("payload"), value.get("payload_base64")
        if (text is None) == (encoded is None):
            raise self._invalid("it has to have one of payload and payload_base64")
        try:
            if isinstance(text, str):
                payload = text.encode()
            elif isinstance(encoded, str):
                payload = b64decode(encoded, validate=True)
            else:
                raise self._invalid("its payload is no text")
        except UnicodeEncodeError as error:
            raise self._invalid("its payload is no text that has bytes") from error
        except (binascii.Error, ValueError) as error:
            raise self._invalid(f"its payload is not base64: {error}") from error
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise RecordTooLarge(f"{self._where}: a record of {len(payload)} bytes does not fit")
        return payload

    def _invalid(self, problem: str) -> InvalidArgument:
        return InvalidArgument(f"{self._where} is no record: {problem}", hint=_HINT, line=self._number)

    @property
    def _where(self) -> str:
        return f"line {self._number} of {self._name}"
