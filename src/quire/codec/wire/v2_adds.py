"""Adds of version 2 in runs: what a writer sends, and what comes back by the thousand.

    request    length (4) header (4) master key (20) | ledger id (8) entry id (8) LAC (8) length (8) digest | payload
    answer     length (4) header (4) code (4) ledger id (8) entry id (8)

The same bytes as those of `v2` and `entry`, which do it one by one; made here with as few steps for each entry as
Python allows, since every entry of every writer passes through.
"""

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Final

from quire.codec.digest import KEY_BYTES, Digest
from quire.codec.entry import HEADER_BYTES
from quire.codec.wire import v2
from quire.codec.wire.codes import Status, status_of_v2
from quire.errors import InvalidArgument, ProtocolViolation
from quire.types import EntryId, LedgerId

_ENVELOPE_BYTES: Final = 4 + KEY_BYTES  # Counted by a frame's length: header and key.
_ENTRY_AT: Final = 4 + _ENVELOPE_BYTES
_REQUEST = Struct(f">II{KEY_BYTES}sqqqq")
_ANSWER = Struct(">Qiqq")  # A whole frame: its length and its header are one number here.
_ANSWER_START: Final = struct.pack(">II", _ANSWER.size - 4, v2.VERSION << 24 | v2.ADD_ENTRY << 16)
_RUN_START = Struct(f">I{KEY_BYTES}sq")
RUN_START_BYTES: Final = _RUN_START.size
_RUN_IDS = Struct(">qq").unpack_from
RUN_BYTES_MIN: Final = RUN_START_BYTES + 16
_OK_IN_LEDGER = Struct(">iq").pack

ADD_ANSWER_BYTES: Final = _ANSWER.size
AddRun = tuple[Status, LedgerId, tuple[EntryId, ...]]


class AddEncoder:
    """The add requests of one ledger."""

    def __init__(self, ledger_id: LedgerId, digest: Digest, master_key: bytes, *, flags: int = 0) -> None:
        v2.add_request_prefix(master_key, entry_bytes=0, flags=flags)  # Refuses a key or flags that do not fit.
        self._ledger_id, self._digest, self._key = ledger_id, digest, master_key
        self._header = v2.VERSION << 24 | v2.ADD_ENTRY << 16 | flags
        self._bytes_before = _ENVELOPE_BYTES + HEADER_BYTES + digest.size

    def heads(self, first: EntryId, payloads: Sequence[bytes], *, lac: EntryId, length: int) -> tuple[list[bytes], int]:
        """What goes before each payload, and the ledger's length after them; `length` is that before them."""
        pack, digest, before = _REQUEST.pack, self._digest.of, self._bytes_before
        header, key, ledger_id = self._header, self._key, self._ledger_id
        heads: list[bytes] = []
        try:
            for entry_id, payload in enumerate(payloads, first):
                size = len(payload)
                length += size
                head = pack(before + size, header, key, ledger_id, entry_id, lac, length)
                heads.append(head + digest(head[_ENTRY_AT:], payload))
        except struct.error as error:
            raise InvalidArgument(f"entries from {first} on with LAC {lac} do not fit into a frame") from error
        return heads, length


def run_start(frame: memoryview) -> bytes | None:
    """What adds of one run have in common, if this is one: header, master key and ledger id. None if it is not, or if
    there is anything special about it.
    """
    if len(frame) < RUN_BYTES_MIN or frame[0] != v2.VERSION or frame[1] != v2.ADD_ENTRY or frame[2] or frame[3]:
        return None
    return bytes(frame[:RUN_START_BYTES])


def decode_add_requests(
    frames: Sequence[memoryview],
) -> tuple[bytes, LedgerId, tuple[EntryId, ...], tuple[EntryId, ...], list[bytes]]:
    """A run of adds with the same start: master key, ledger id, entry ids, LACs and entries."""
    _, key, ledger_id = _RUN_START.unpack_from(frames[0])
    entry_ids, lacs = zip(*[_RUN_IDS(frame, RUN_START_BYTES) for frame in frames], strict=True)
    return key, ledger_id, entry_ids, lacs, [bytes(frame[_ENVELOPE_BYTES:]) for frame in frames]


def encode_add_oks(ledger_id: LedgerId, entry_ids: Sequence[EntryId]) -> bytes:
    """The answers to adds of one ledger that became durable together, ready for one write."""
    start = _ANSWER_START + _OK_IN_LEDGER(0, ledger_id)
    return start + start.join([entry_id.to_bytes(8, "big") for entry_id in entry_ids])


def decode_add_answers(data: bytes) -> tuple[list[AddRun], int]:
    """The answers to adds that `data` begins with, with their frames' lengths; and how many bytes of it they are.

    In runs that are alike but for the entry. Whatever does not look exactly like an answer is left to others.
    """
    count = len(data) // _ANSWER.size
    if count == 0 or not data.startswith(_ANSWER_START):
        return [], 0
    rows = _ANSWER.iter_unpack(memoryview(data)[: count * _ANSWER.size])
    starts, codes, ledger_ids, entry_ids = zip(*rows, strict=True)
    if starts.count(starts[0]) != count:
        count = next(place for place, start in enumerate(starts) if start != starts[0])
        codes, ledger_ids, entry_ids = codes[:count], ledger_ids[:count], entry_ids[:count]
    if codes.count(0) == count and ledger_ids.count(ledger_ids[0]) == count:
        return [(Status.EOK, ledger_ids[0], entry_ids)], count * _ANSWER.size
    runs: list[AddRun] = []
    begin = 0
    while begin < count:
        code, ledger_id, end = codes[begin], ledger_ids[begin], begin + 1
        while end < count and codes[end] == code and ledger_ids[end] == ledger_id:
            end += 1
        try:
            runs.append((status_of_v2(code), ledger_id, entry_ids[begin:end]))
        except ProtocolViolation:
            break  # Told when it is met again, after what came before it was taken in.
        begin = end
    return runs, begin * _ANSWER.size
