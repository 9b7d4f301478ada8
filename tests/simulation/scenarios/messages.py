"""What clients and bookies said to one another, decoded from the frames of both versions of the protocol."""

from typing import NamedTuple

from quire.codec.wire import v2, v3
from quire.codec.wire.codes import Status
from quire.codec.wire.frames import protocol_version
from quire.codec.wire.v3_messages import AddRequest, Operation, ReadFlag, ReadRequest, ReadResponse

_V2_NAMES = {v2.ADD_ENTRY: "add", v2.READ_ENTRY: "read", v2.BATCH_READ_ENTRY: "batch read"}
_V3_NAMES = {
    Operation.ADD_ENTRY: "add",
    Operation.READ_ENTRY: "read",
    Operation.READ_LAC: "read LAC",
    Operation.WRITE_LAC: "write LAC",
    Operation.FORCE_LEDGER: "force",
}
NOT_NAMED = -2  # The entry of a message that names none.


class Message(NamedTuple):
    """One request, or one answer: then it has a status.

    `what` is `add`, `recovery add`, `read`, `fence`, `long poll`, `batch read`, `read LAC`, `write LAC` or `force`.
    Answers to the first two are called `add`, to the next three `read`.
    """

    source: str
    target: str
    what: str
    entry_id: int
    status: Status | None = None
    has_entry: bool = False  # Of an answer to a read.

    @property
    def bookie(self) -> str:
        return self.target if self.status is None else self.source


def request(source: str, target: str, body: memoryview) -> Message:
    if protocol_version(body) == 3:
        asked = v3.decode_request(body)
        what, content = _V3_NAMES.get(asked.operation, asked.operation.name), asked.content
        if isinstance(content, AddRequest):
            return Message(source, target, "recovery add" if content.recovery else what, content.entry_id)
        if isinstance(content, ReadRequest):
            if content.flag is ReadFlag.FENCE_LEDGER:
                what = "fence"
            elif content.is_long_poll:
                what = "long poll"
            return Message(source, target, what, content.entry_id)
        return Message(source, target, what, NOT_NAMED)
    opcode = v2.decode_header(body)[1]
    what = _V2_NAMES.get(opcode, f"opcode {opcode}")
    if opcode == v2.ADD_ENTRY:
        flags, _, _, entry_id, _, _ = v2.decode_add_request(body)
        return Message(source, target, "recovery add" if flags & v2.RECOVERY_ADD else what, entry_id)
    if opcode == v2.READ_ENTRY:
        _, _, entry_id, key = v2.decode_read_request(body)
        return Message(source, target, what if key is None else "fence", entry_id)
    if opcode == v2.BATCH_READ_ENTRY:
        return Message(source, target, what, v2.decode_batch_read_request(body)[2])
    return Message(source, target, what, NOT_NAMED)


def answer(source: str, target: str, body: memoryview) -> Message:
    if protocol_version(body) == 3:
        told = v3.decode_response(body)
        what = _V3_NAMES.get(told.operation, told.operation.name)
        entry_id = getattr(told.content, "entry_id", NOT_NAMED)
        has_entry = isinstance(told.content, ReadResponse) and told.content.body is not None
        return Message(source, target, what, entry_id, told.status, has_entry)
    opcode = v2.decode_header(body)[1]
    if opcode == v2.ADD_ENTRY:
        status, _, entry_id = v2.decode_add_response(body)
        return Message(source, target, "add", entry_id, status)
    if opcode == v2.READ_ENTRY:
        status, _, entry_id, data = v2.decode_read_response(body)
        return Message(source, target, "read", entry_id, status, data is not None)
    if opcode == v2.BATCH_READ_ENTRY:
        status, _, entry_id, _, entries = v2.decode_batch_read_response(body)
        return Message(source, target, "batch read", entry_id, status, bool(entries))
    return Message(source, target, f"opcode {opcode}", NOT_NAMED, Status.EOK)
