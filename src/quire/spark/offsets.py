"""How far a streaming query has come, as Spark keeps it in a checkpoint.

    {"v": 1, "streams": {"orders": {"segment": 7, "entry": 120, "slot": 0, "identity": "9f0c…"}}}

Each place is the next one to be read. Places are numbers of the stream's own: they stay what they are when segments are
archived, restored or copied, and say nothing of ledgers or files. The identity tells a stream from another one that was
made under the same name after it was deleted; null if Apache's client created the stream. A stream that is not
named has not been met yet, and is read from its beginning.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from quire.errors import InvalidArgument
from quire.types import DLSN, EntryId, Lssn, SlotId

VERSION: Final = 1


class Offset(NamedTuple):
    """How far one stream was read."""

    place: DLSN
    identity: str | None = None

    def is_of(self, identity: str | None) -> bool:
        """Whether a stream with this identity is the one that was read, as far as can be told."""
        return self.identity is None or self.identity == identity


Offsets: TypeAlias = dict[str, Offset]


def encode_offsets(offsets: Mapping[str, Offset]) -> dict[str, Any]:
    """In one order: Spark takes two offsets for equal if their text is."""
    return {
        "v": VERSION,
        "streams": {
            stream: {"segment": at.lssn, "entry": at.entry_id, "slot": at.slot_id, "identity": identity}
            for stream, (at, identity) in sorted(offsets.items())
        },
    }


def decode_offsets(value: Any) -> Offsets:
    """Raises `InvalidArgument` for what this version did not write."""
    if not isinstance(value, dict) or value.get("v") != VERSION or not isinstance(value.get("streams"), dict):
        raise _foreign(value)
    try:
        return {
            stream: Offset(_place(stored), _identity(stored["identity"])) for stream, stored in value["streams"].items()
        }
    except (KeyError, TypeError) as error:
        raise _foreign(value) from error


def _place(stored: dict[str, Any]) -> DLSN:
    return DLSN(Lssn(_whole(stored["segment"])), EntryId(_whole(stored["entry"])), SlotId(_whole(stored["slot"])))


def _identity(identity: Any) -> str | None:
    if identity is not None and type(identity) is not str:
        raise TypeError(f"{identity!r} is no identity")
    return identity


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r} is no whole number")
    return number


def _foreign(value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"the checkpoint does not say how far this source was read: {value!r}",
        hint="It belongs to another query, or to another version. Give the query a checkpoint folder of its own.",
    )
