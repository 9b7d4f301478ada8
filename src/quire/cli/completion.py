"""Names of streams for the shell's completion: asked of the cluster in a moment, or not at all.

Nothing is started for it. A log in a folder would have to be opened, and somebody else may have it open. A local
cluster is asked where its metadata is, past its proxies, and proxies that are named are asked themselves. Whatever goes
wrong, the shell gets no names and the person no message: both can go on typing.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import typer

from quire.cli.default_uri import is_proxies, known_uri

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
    async with asyncio.timeout(_TIMEOUT_S), _names(uri, prefix) as names:
        async for name in names:
            found.append(name)
            if len(found) >= _NAMES_MAX:
                return


@asynccontextmanager
async def _names(uri: str, prefix: str) -> AsyncIterator[AsyncIterator[str]]:
    if is_proxies(uri):
        from quire.cli.proxy_environment import client_settings
        from quire.client import connect
        from quire.stream.settings import StreamSettings

        settings = StreamSettings(call_timeout_s=_TIMEOUT_S)
        async with connect(uri, settings=settings, proxy_settings=client_settings(uri)) as client:
            yield client.scan_streams(prefix)
        return
    from quire.metadata import StoreSettings, open_store
    from quire.stream.listing import scan_streams
    from quire.stream.uri import parse_stream_uri

    parsed = parse_stream_uri(uri)
    patience = StoreSettings(operation_timeout_s=_TIMEOUT_S, create_missing=False)
    async with open_store(parsed.store, settings=patience) as store:
        yield scan_streams(store, parsed.path, prefix)
