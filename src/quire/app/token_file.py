"""Tokens in files: those that a proxy knows, and the one that a process shows to others.

Both are read again while a process runs, so that tokens can be added, taken back and replaced. A token is never on a
command line: every user of the machine can see that.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from quire.app.followed_file import followed_file
from quire.errors import InvalidArgument
from quire.rpc.serving.tokens import Tokens, parse_tokens
from quire.runtime import Clock


@asynccontextmanager
async def followed_tokens(path: str, clock: Clock) -> AsyncIterator[Tokens]:
    """What the file says, now and later. Raises `InvalidArgument` if it cannot be read at first; if it cannot be read
    later, what it said last still counts."""
    tokens = Tokens((), lambda: clock.wall_ms() / 1000)
    async with followed_file("tokens", path, clock, lambda text: tokens.replace(parse_tokens(text))):
        yield tokens


@asynccontextmanager
async def followed_token(path: str, clock: Clock) -> AsyncIterator[Callable[[], str]]:
    """What tells the one token in the file, now and later. Raises as `followed_tokens` does."""
    token = ""

    def use(text: str) -> None:
        nonlocal token
        token = _only_token(text)

    async with followed_file("token", path, clock, use):
        yield lambda: token


def read_token(path: str) -> str:
    """The one token in a file. Raises `InvalidArgument`."""
    try:
        return _only_token(Path(path).read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"the token in {path} cannot be read: {error}", path=path) from error


def _only_token(text: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidArgument(
            "the file does not have one token", hint="Put into it what `quire proxy token` printed, and nothing else."
        )
    return token
