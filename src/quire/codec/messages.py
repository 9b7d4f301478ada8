"""Read and write the generated messages, in protobuf's binary format and in its text format.

What comes out of a reader here is complete: every required field is set and every string is text. Google's library
promises neither; it hands out absent required fields as zeros, and strings that are not UTF-8 as bytes.
"""

from collections.abc import Iterator, Mapping
from typing import TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from quire.codec.text_reader import merge_text
from quire.codec.text_writer import write_text
from quire.errors import DamagedMetadata

__all__ = ["read_binary", "read_text", "write_binary", "write_text"]

M = TypeVar("M", bound=Message)


def read_binary(data: bytes, message_type: type[M], what: str) -> M:
    """The message that `data` holds as a whole; unknown fields are ignored. Raises `DamagedMetadata`."""
    message = message_type()
    try:
        message.ParseFromString(data)
        broken = [name for name, value in _strings(message) if not isinstance(value, str)]
    except (DecodeError, UnicodeDecodeError) as error:
        raise DamagedMetadata(f"{what}: the bytes are no {message.DESCRIPTOR.name} message") from error
    if broken:
        raise DamagedMetadata(f"{what}: {broken[0]} is not UTF-8 text")
    return _complete(message, what)


def read_text(data: bytes, message_type: type[M], what: str, *, first_line: int = 1) -> M:
    """The message that `data` spells; unknown fields are ignored. Raises `DamagedMetadata`.

    `first_line` is the number that errors give to the first line of `data`, for texts that start below a header.
    """
    message = message_type()
    merge_text(data, message, what, first_line=first_line)
    return _complete(message, what)


def write_binary(message: Message) -> bytes:
    """The bytes of `message`, fields ascending by number and maps by key: equal messages give equal bytes."""
    return message.SerializeToString(deterministic=True)


def _complete(message: M, what: str) -> M:
    missing = next(_missing(message), None)
    if missing is not None:
        raise DamagedMetadata(f"{what}: {missing} is missing, or has no value that we know")
    return message


def _missing(message: Message) -> Iterator[str]:
    """The names of required fields that are not set, at any depth. An unknown enum value counts as not set."""
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            yield field.name
        elif field.message_type is not None and not isinstance(items := getattr(message, field.name), Mapping):
            for item in items:
                yield from (f"{field.name}.{name}" for name in _missing(item))


def _strings(message: Message) -> Iterator[tuple[str, object]]:
    """Every value of a string field, at any depth, with the field's name."""
    for field, value in message.ListFields():
        if isinstance(value, Mapping):
            for pair in value.items():
                yield from ((field.name, item) for item in pair)
        elif field.message_type is not None:
            for item in value:
                yield from _strings(item)
        elif field.type == FieldDescriptor.TYPE_STRING:
            yield from ((field.name, item) for item in (value if field.is_repeated else [value]))
