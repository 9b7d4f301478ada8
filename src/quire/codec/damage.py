"""How decoders say what is wrong with stored bytes, and where.

The immutable values in `quire.types` check their own rules and blame the caller (`InvalidArgument`). While bytes are
read the caller is innocent and the bytes are not: `reading` turns the one error into the other.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from quire.errors import DamagedMetadata, InvalidArgument

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

_DECIMAL = re.compile("-?[0-9]{1,19}", re.ASCII)
_SHOWN_CHARACTERS_MAX: Final = 80


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Inside, a value that breaks its own rules means that the bytes of `what` are damaged."""
    try:
        yield
    except InvalidArgument as error:
        damaged = DamagedMetadata(f"{what}: {error}")
        damaged.facts = error.facts
        raise damaged from error


def shown(value: object) -> str:
    """`value` as it may stand in a message: quoted, and cut short where damage made it long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[: _SHOWN_CHARACTERS_MAX - 3] + "..."


def utf8(data: bytes, what: str) -> str:
    """`data` as text. Raises `DamagedMetadata` naming the first byte that is none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DamagedMetadata(f"{what}: byte {error.start} is not UTF-8 text") from error


def check_text(text: str) -> None:
    """The reverse question: raise `InvalidArgument` unless `text` can be stored. Not every Python string is UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{shown(text)} is not valid text") from None


def decimal(text: str, what: str, *, low: int = -INT64_MAX - 1, high: int = INT64_MAX) -> int:
    """The number that `text` spells in plain decimal digits. Raises `DamagedMetadata` outside `low`..`high`.

    Stricter than `int`, which also takes spaces, underscores, a plus sign and digits of other scripts.
    """
    number = int(text) if _DECIMAL.fullmatch(text) else None
    if number is None or not low <= number <= high:
        raise DamagedMetadata(f"{what} should be a number from {low} to {high}, but is {shown(text)}")
    return number
