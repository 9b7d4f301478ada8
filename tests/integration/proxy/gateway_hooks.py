"""For schemathesis, which does not know how lines of JSON are sent, nor what the description says of names in words: a
pattern with all characters that are refused beyond ASCII would be too slow for programs that make names from it."""

from typing import Any
from urllib.parse import unquote

import schemathesis

from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidName


@schemathesis.serializer("application/x-ndjson")
def as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")


@schemathesis.hook
def filter_path_parameters(_: Any, path_parameters: dict[str, Any] | None) -> bool:
    return not any(_is_refused_in_words(unquote(str(value))) for value in (path_parameters or {}).values())


def _is_refused_in_words(name: str) -> bool:
    try:
        stream_name("".join(character for character in name if ord(character) > 127) or "ascii")
    except InvalidName:
        return True
    return False
