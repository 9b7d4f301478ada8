"""The tokens of a proxy: a file that is read again while it runs, so that tokens can be added and taken back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from quire.app.followed_file import followed_file
from quire.rpc.serving.tokens import Tokens, parse_tokens
from quire.runtime import Clock


@asynccontextmanager
async def followed_tokens(path: str, clock: Clock) -> AsyncIterator[Tokens]:
    """What the file says, now and later. Raises `InvalidArgument` if it cannot be read at first; if it cannot be read
    later, what it said last still counts."""
    tokens = Tokens((), lambda: clock.wall_ms() / 1000)
    async with followed_file("tokens", path, clock, lambda text: tokens.replace(parse_tokens(text))):
        yield tokens
