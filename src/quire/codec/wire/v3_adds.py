"""The frames of `v3` for adds, cheaper: they are as many as there are entries.

A request is written around the entry instead of with a copy of it, field by field:

    length  0A header  AA 06 length  08 ledger  10 entry id  1A 14 master key  22 length  entry  [28 flags] [A0 06 01]

An answer is written by protobuf from one message that is filled in again and again; most of the cost of a message is
making it. Both give the same bytes as `v3.encode_request` and `v3.encode_response`.
"""

from collections.abc import Iterable
from typing import Final

from quire.codec.digest import KEY_BYTES
from quire.codec.protobuf import varint
from quire.codec.wire.codes import Status
from quire.errors import InvalidArgument
from quire.types import EntryId, LedgerId

_INT32_END: Final = 2**31
_INT64_END: Final = 2**63
_UINT64_END: Final = 2**64
_FRAME_END: Final = 2**32

_ADD_HEADER: Final = b"\x08\x03\x10\x02\x18"  # Version 3, ADD_ENTRY, and the tag of the transaction id.
_RECOVERY_ADD: Final = b"\xa0\x06\x01"


def add_request_parts(
    txn_id: int,
    ledger_id: LedgerId,
    entry_id: EntryId,
    master_key: bytes,
    *,
    entry_bytes: int,
    write_flags: int = 0,
    recovery: bool = False,
    priority: int = 0,
) -> tuple[bytes, bytes]:
    """What goes before and after an entry of `entry_bytes` bytes in all. The second part is empty for ordinary adds."""
    if not (
        0 <= txn_id < _UINT64_END
        and -_INT64_END <= ledger_id < _INT64_END
        and -_INT64_END <= entry_id < _INT64_END
        and -_INT32_END <= write_flags < _INT32_END
        and 0 <= priority < 2 * _INT32_END
        and len(master_key) == KEY_BYTES
    ):
        raise InvalidArgument(f"an add of entry {entry_id} to ledger {ledger_id} cannot be sent: a field does not fit")
    suffix = b"\x28" + varint(write_flags) if write_flags else b""
    if recovery:
        suffix += _RECOVERY_ADD
    header = _ADD_HEADER + varint(txn_id)
    if priority:
        header += b"\x20" + varint(priority)
    add = b"\x08%b\x10%b\x1a\x14%b\x22%b" % (varint(ledger_id), varint(entry_id), master_key, varint(entry_bytes))
    after = entry_bytes + len(suffix)
    message = b"\x0a%c%b\xaa\x06%b%b" % (len(header), header, varint(len(add) + after), add)
    length = len(message) + after
    if length >= _FRAME_END:
        raise InvalidArgument(f"an entry of {entry_bytes} bytes does not fit into a frame")
    return length.to_bytes(4, "big") + message, suffix


class AddResponses:
    """Writes a connection's answers to adds. Not for use by two threads at a time."""

    def __init__(self) -> None:
        from quire.codec.pb import bookkeeper_protocol_pb2 as pb  # Only those who answer need Google's library.

        self._message = pb.Response(
            header=pb.PacketHeader(version=pb.VERSION_THREE, operation=pb.ADD_ENTRY, txn_id=0),
            status=pb.EOK,
            add=pb.AddResponse(status=pb.EOK, ledger_id=0, entry_id=0),
        )
        self._header, self._add = self._message.header, self._message.add

    def encode(self, txn_id: int, status: Status, ledger_id: LedgerId, entry_id: EntryId) -> bytes:
        """A frame."""
        return self._frames(status, ((txn_id, ledger_id, entry_id),))

    def encode_oks(self, stored: Iterable[tuple[int, LedgerId, EntryId]]) -> bytes:
        """The answers to all adds that one flush made durable, by transaction id, ready for one write."""
        return self._frames(Status.EOK, stored)

    def _frames(self, status: Status, answers: Iterable[tuple[int, LedgerId, EntryId]]) -> bytes:
        message, header, add = self._message, self._header, self._add
        message.status = add.status = status.value  # type: ignore[assignment]
        serialize = message.SerializeToString
        frames: list[bytes] = []
        try:
            for header.txn_id, add.ledger_id, add.entry_id in answers:
                data = serialize()
                frames += (len(data).to_bytes(4, "big"), data)
        except ValueError as error:
            raise InvalidArgument(f"an answer cannot be sent: {error}") from error
        return b"".join(frames)
