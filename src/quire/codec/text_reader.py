"""Read a message from protobuf's text format, tolerant as Apache's readers are, and never trusting the text.

Taken as meant: fields in any order, names that we do not know (skipped), `name: {` and `name <`, lists in brackets,
adjacent strings, single quotes, comments, commas and semicolons between fields, octal and hexadecimal escapes and
numbers, enum values by name or number, the last of several values where one is allowed.

Google's own reader is not used: it recurses without a bound while it skips unknown fields, warns through Python's
warning machinery about escapes it does not know, and its idea of an escape depends on the release that is installed.
"""

import re
from typing import Final, NoReturn, cast

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from quire.codec.damage import INT32_MAX, INT64_MAX
from quire.errors import DamagedMetadata

_DEPTH_MAX: Final = 32  # Our messages nest once; unknown fields may nest deeper, but not to exhaust the stack.
_NUMBER_BYTES_MAX: Final = 32

_TOKEN = re.compile(  # Possessive where it skips: long damage must not cost exponential time.
    rb"""(?: [ \t\r\n\f\v]++ | \#[^\n]*+ )*+
    (?: (?P<name> [A-Za-z_][A-Za-z0-9_]* )
      | (?P<number> \.?[0-9+\-][0-9A-Za-z_.+\-]* )
      | (?P<string> "(?:[^"\\\n]|\\[^\n])*" | '(?:[^'\\\n]|\\[^\n])*' )
      | (?P<mark> [{}<>\[\]:,;] )
      | (?P<end> \Z ) )""",
    re.VERBOSE,
)
_INTEGER = re.compile(rb"(?P<sign>-?)(?:0[xX](?P<hex>[0-9a-fA-F]+)|0(?P<octal>[0-7]+)|(?P<decimal>0|[1-9][0-9]*))")
_ESCAPE = re.compile(rb"\\(?:(?P<octal>[0-7]{1,3})|[xX](?P<hex>[0-9a-fA-F]{1,2})|(?P<char>.))", re.DOTALL)
_CHARACTERS: Final = dict(zip(b"abfnrtv\"'\\?", b"\a\b\f\n\r\t\v\"'\\?", strict=True))
_CLOSING: Final = {b"{": b"}", b"<": b">"}
_INTEGER_MAX: Final = {FieldDescriptor.TYPE_INT32: INT32_MAX, FieldDescriptor.TYPE_INT64: INT64_MAX}


def merge_text(data: bytes, message: Message, what: str, *, first_line: int) -> None:
    """Fill `message` from `data`. Raises `DamagedMetadata`; does not ask whether required fields are there.

    `first_line` is the number that errors give to the first line of `data`, for texts that start below a header.
    """
    _Reader(data, what, first_line).read_fields(message, closing=b"", depth=0)


class _Reader:
    """Walks over the text once. `kind`, `text` and `start` describe the token that it stands on."""

    def __init__(self, data: bytes, what: str, first_line: int) -> None:
        self._data, self._what, self._first_line = data, what, first_line
        self._end = 0
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self._data, self._end)
        if match is None:
            self.start = self._end
            self.fail("this is no text format")
        self.kind = match.lastgroup
        self.text: bytes = match[match.lastgroup or 0]
        self.start, self._end = match.start(match.lastgroup or 0), match.end()

    def fail(self, problem: str) -> NoReturn:
        line = self._first_line + self._data.count(b"\n", 0, self.start)
        column = self.start - self._data.rfind(b"\n", 0, self.start)
        # The text itself is not quoted: it may be a ledger's password.
        raise DamagedMetadata(f"{self._what}: line {line}, column {column}: {problem}")

    def take(self, *marks: bytes) -> bytes | None:
        """Step over one of `marks` and return it, or stay and return None."""
        if self.kind != "mark" or self.text not in marks:
            return None
        taken = self.text
        self.advance()
        return taken

    def read_fields(self, message: Message | None, *, closing: bytes, depth: int) -> None:
        """Read fields up to `closing` (or the end of the text) into `message`; None only skips them."""
        if depth > _DEPTH_MAX:
            self.fail(f"more than {_DEPTH_MAX} messages inside one another")
        while not (self.take(closing) if closing else self.kind == "end"):
            if self.kind not in ("name", "number"):
                self.fail(f"a field name{f' or {closing.decode()!r}' if closing else ''} should stand here")
            name = self.text.decode()
            self.advance()
            if message is not None and name in message.DESCRIPTOR.fields_by_name:
                self.read_value(message, cast(FieldDescriptor, message.DESCRIPTOR.fields_by_name[name]), depth)
            else:
                self.skip_value(depth)
            self.take(b",", b";")

    def read_value(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if not self.take(b":") and field.message_type is None:
            self.fail(f"':' should follow {field.name!r}")
        if field.is_repeated and self.take(b"["):
            while not self.take(b"]"):
                self.read_item(message, field, depth)
                self.take(b",")
        else:
            self.read_item(message, field, depth)

    def read_item(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        if field.message_type is not None:  # Repeated, as every nested message of ours.
            opening = self.take(b"{", b"<") or self.fail(f"'{{' should follow {field.name!r}")
            self.read_fields(getattr(message, field.name).add(), closing=_CLOSING[opening], depth=depth + 1)
        elif field.is_repeated:
            getattr(message, field.name).append(self.scalar(field))
        else:
            setattr(message, field.name, self.scalar(field))

    def skip_value(self, depth: int) -> None:
        colon = self.take(b":")
        if colon and self.take(b"["):
            while not self.take(b"]"):
                self.skip_item(depth)
                self.take(b",")
        elif not colon and not (self.kind == "mark" and self.text in _CLOSING):
            self.fail("':' or '{' should follow a field name")
        else:
            self.skip_item(depth)

    def skip_item(self, depth: int) -> None:
        opening = self.take(b"{", b"<")
        if opening:
            self.read_fields(None, closing=_CLOSING[opening], depth=depth + 1)
        elif self.kind == "string":
            self.string()
        elif self.kind in ("name", "number"):
            self.advance()
        else:
            self.fail("a value should stand here")

    def scalar(self, field: FieldDescriptor) -> int | str | bytes:
        if field.type == FieldDescriptor.TYPE_BYTES:
            return self.string()
        if field.type == FieldDescriptor.TYPE_STRING:
            start, data = self.start, self.string()
            try:
                return data.decode()
            except UnicodeDecodeError:
                self.start = start
                self.fail(f"{field.name!r} is not UTF-8 text")
        if field.enum_type is not None and self.kind == "name":
            value = field.enum_type.values_by_name.get(self.text.decode())
            number = None if value is None else int(value.number)
        else:
            number = self.integer(field)
        if number is None or (field.enum_type is not None and number not in field.enum_type.values_by_number):
            self.fail(f"{field.name!r} has no such value")
        self.advance()
        return number

    def integer(self, field: FieldDescriptor) -> int:
        match = _INTEGER.fullmatch(self.text) if len(self.text) <= _NUMBER_BYTES_MAX else None
        if self.kind != "number" or match is None:
            self.fail(f"{field.name!r} should be an integer")
        base = {"hex": 16, "octal": 8}.get(match.lastgroup or "", 10)
        number = int(match["sign"] + match[match.lastgroup or 0], base)
        highest = _INTEGER_MAX.get(field.type, INT32_MAX)
        if not -highest - 1 <= number <= highest:
            self.fail(f"{field.name!r} is too large")
        return number

    def string(self) -> bytes:
        """One string, or several that stand side by side and mean one."""
        if self.kind != "string":
            self.fail("a quoted string should stand here")
        parts = []
        while self.kind == "string":
            parts.append(_ESCAPE.sub(self._unescape, self.text[1:-1]))
            self.advance()
        return b"".join(parts)

    def _unescape(self, match: re.Match[bytes]) -> bytes:
        if match["char"] is not None:
            byte = _CHARACTERS.get(match["char"][0])
        else:
            byte = int(match["octal"], 8) if match["octal"] else int(match["hex"], 16)
        if byte is None or byte > 0xFF:
            self.fail("this string has an escape that means nothing")
        return bytes([byte])
