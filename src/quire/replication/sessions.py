"""Work that counts only as long as a session does: locks and votes are gone with it, so the work ends, too."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from quire.errors import SessionExpired, StoreClosed
from quire.metadata import MetadataStore, SessionWatch


async def in_session(store: MetadataStore, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do `work` to its end. If the present session is over before, it is cancelled, and `SessionExpired` raised."""
    session = store.session
    with store.watch_session() as watch:
        working = asyncio.create_task(work(), name="work of one session")
        ending = asyncio.create_task(_wait_over(store, session, watch), name="wait for the end of a session")
        try:
            await asyncio.wait([working, ending], return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            ending.cancel()
            await asyncio.wait([working, ending])
        if not working.cancelled():
            working.result()
            return
        if not ending.cancelled():
            ending.result()
        raise SessionExpired("the metadata session is over, and with it all locks and votes")


async def _wait_over(store: MetadataStore, session: object, watch: SessionWatch) -> None:
    try:
        while store.session == session:
            await watch.wait_event()
    except StoreClosed:
        return
