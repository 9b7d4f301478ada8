"""Print a message in protobuf's text format, byte for byte as Apache BookKeeper 4.18 does.

One field to a line in the order of field numbers, nested messages in braces and indented by two spaces, LF at every
end. Strings and bytes are escaped byte by byte, so the result is always ASCII. Google's own printer differs in escapes
and changes its spacing between releases on purpose, hence this one.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from google.protobuf.descriptor import FieldDescriptor
    from google.protobuf.message import Message

_SHORT_ESCAPES: Final = {
    ord("\b"): r"\b",
    ord("\f"): r"\f",
    ord("\n"): r"\n",
    ord("\r"): r"\r",
    ord("\t"): r"\t",
    ord('"'): r"\"",
    ord("'"): r"\'",
    ord("\\"): r"\\",
}
_ESCAPED: Final = [
    _SHORT_ESCAPES.get(byte) or (chr(byte) if 0x20 <= byte <= 0x7E else f"\\{byte:03o}") for byte in range(256)
]


def write_text(message: "Message") -> bytes:
    """The text of `message`, which must have all its required fields."""
    return "".join(f"{line}\n" for line in _lines(message, "")).encode("ascii")


def quote(data: bytes) -> str:
    """`data` between double quotes, escaped."""
    return '"' + "".join(_ESCAPED[byte] for byte in data) + '"'


def _lines(message: "Message", indent: str) -> Iterator[str]:
    for field, value in message.ListFields():  # Only fields that are set, ascending by number.
        for item in value if field.is_repeated else [value]:
            if field.message_type is not None:
                yield f"{indent}{field.name} {{"
                yield from _lines(item, indent + "  ")
                yield f"{indent}}}"
            else:
                yield f"{indent}{field.name}: {_scalar(field, item)}"


def _scalar(field: "FieldDescriptor", value: str | bytes | int) -> str:
    if isinstance(value, str):
        return quote(value.encode())
    if isinstance(value, bytes):
        return quote(value)
    if field.enum_type is not None:
        return str(field.enum_type.values_by_number[value].name)
    return str(value)
