"""For schemathesis, which does not know how lines of JSON are sent."""

from typing import Any

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode(errors="replace")
