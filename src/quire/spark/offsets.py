"""How far a streaming query has come, as Spark keeps it in a checkpoint.

    {"v": 1, "streams": {"orders": {"segment": 7, "entry": 120, "slot": 0}}}

Each place is the next one to be read. Places are numbers of the stream's own: they stay what they are when segments are
archived, restored or copied, and say nothing of ledgers or files. A stream that is not named has not been met yet, and
is read from its beginning.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from quire.errors import InvalidArgument
from quire.types import DLSN, EntryId, Lssn, SlotId

VERSION: Final = 1

Offsets: TypeAlias = dict[str, DLSN]


def encode_offsets(places: Mapping[str, DLSN]) -> dict[str, Any]:
    """In one order: Spark takes two offsets for equal if their text is."""
    return {
        "v": VERSION,
        "streams": {
            stream: {"segment": place.lssn, "entry": place.entry_id, "slot": place.slot_id}
            for stream, place in sorted(places.items())
        },
    }


def decode_offsets(value: Any) -> Offsets:
    """Raises `InvalidArgument` for what this version did not write."""
    if not isinstance(value, dict) or value.get("v") != VERSION or not isinstance(value.get("streams"), dict):
        raise _foreign(value)
    try:
        return {
            stream: DLSN(Lssn(_whole(place["segment"])), EntryId(_whole(place["entry"])), SlotId(_whole(place["slot"])))
            for stream, place in value["streams"].items()
        }
    except (KeyError, TypeError) as error:
        raise _foreign(value) from error


def _whole(number: Any) -> int:
    if type(number) is not int:
        raise TypeError(f"{number!r} is no whole number")
    return number


def _foreign(value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"the checkpoint does not say how far this source was read: {value!r}",
        hint="It belongs to another query, or to another version. Give the query a checkpoint folder of its own.",
    )
