"""Names of streams for the shell's completion: asked of the cluster in a moment, or not at all.

Nothing is started for it. A log in a folder would have to be opened, and somebody else may have it open. Whatever goes
wrong, the shell gets no names and the person no message: both can go on typing.
"""

import asyncio
import os
from typing import Final

import typer

from quire.cli.default_uri import known_uri

_TIMEOUT_S: Final = 1.5
_NAMES_MAX: Final = 200


def complete_stream(context: typer.Context, incomplete: str) -> list[str]:
    """The streams whose names begin with what was typed."""
    uri = known_uri(context.params.get("uri") or os.environ.get("QUIRE_URI"))
    if uri is None:
        return []
    found: list[str] = []
    try:
        asyncio.run(_collect(uri, incomplete, found))
    except Exception:  # A completion has nobody to tell it to.
        return found
    return found


async def _collect(uri: str, prefix: str, found: list[str]) -> None:
    from quire.metadata import StoreSettings, open_store
    from quire.stream.listing import scan_streams
    from quire.stream.uri import parse_stream_uri

    parsed = parse_stream_uri(uri)
    settings = StoreSettings(operation_timeout_s=_TIMEOUT_S, create_missing=False)
    async with asyncio.timeout(_TIMEOUT_S), open_store(parsed.store, settings=settings) as store:
        async for name in scan_streams(store, parsed.path, prefix):
            found.append(name)
            if len(found) >= _NAMES_MAX:
                return
