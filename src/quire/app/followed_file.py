"""A file that is read again while a process runs, so that an operator changes it and restarts nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from quire.errors import InvalidArgument
from quire.runtime import Clock
from quire.telemetry.events import logger

_RELOAD_S: Final = 1.0
_SETTLE_S: Final = 0.1  # Editors empty a file before they write it: what is seen then is nobody's wish.
_log = logger("proxy")


@asynccontextmanager
async def followed_file(what: str, path: str, clock: Clock, use: Callable[[str], None]) -> AsyncIterator[None]:
    """Call `use` with the text of the file, now and whenever it changed, for the block; `what` is in it, in one word.

    Raises `InvalidArgument` if the file cannot be read at first, or if `use` does. If either happens later, an event
    says so, once for each problem, and what `use` took last still counts.
    """
    text = await _read(what, path)
    _use(path, text, use)

    async def follow() -> None:
        last, told = text, ""
        while True:
            await clock.sleep(_RELOAD_S)
            try:
                now = await _read(what, path)
                if now != last:
                    await clock.sleep(_SETTLE_S)
                    if now != await _read(what, path):
                        continue  # It is being written.
                    _use(path, now, use)
                    _log.info(f"{what}.changed", path=path)
                last, told = now, ""
            except InvalidArgument as error:
                if str(error) != told:
                    told = str(error)
                    _log.warning(f"{what}.refused", path=path, problem=told)

    task = asyncio.create_task(follow(), name=f"follow {what}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _read(what: str, path: str) -> str:
    try:
        return await asyncio.to_thread(Path(path).read_text, "utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the {what} in {path} cannot be read: {error}", path=path) from error


def _use(path: str, text: str, use: Callable[[str], None]) -> None:
    try:
        use(text)
    except InvalidArgument as error:
        raise InvalidArgument(f"{path}: {error}", hint=error.hint, path=path) from error
