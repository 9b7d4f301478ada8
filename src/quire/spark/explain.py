"""Errors as Spark shows them: a traceback, of which people read the last lines. So what to do has to be among those."""

from collections.abc import Iterator
from contextlib import contextmanager

from quire.errors import CallerMistake, NoSuchStream, PositionInFuture, PositionTruncated, QuireError

# Where in our code these were noticed helps nobody: they are about what was asked for.
_ABOUT_THE_QUERY = (CallerMistake, NoSuchStream, PositionInFuture, PositionTruncated)


@contextmanager
def explained() -> Iterator[None]:
    """Put the hint of an error of ours behind it, once, and leave out what only we would want to know."""
    try:
        yield
    except QuireError as error:
        if error.hint and error.hint not in getattr(error, "__notes__", ()):
            error.add_note(error.hint)
        if isinstance(error, _ABOUT_THE_QUERY):
            error.__cause__ = error.__context__ = None
            raise error.with_traceback(None) from None
        raise
