"""The limits of a write proxy: a TOML file that is read again while it runs, so that they can be changed.

[proxy]                        # of everything that this proxy appends
bytes_hard = 52428800          # refused above it; requests_hard, and _soft for what is only counted

[namespace]                    # the same of its namespace
requests_soft = 10000

[acquire]                      # above it no further streams are taken
bytes_per_s = 47185920

[streams.default]              # of each stream
requests_hard = 1000

[streams."metrics/*"]          # of those that a pattern fits; or of one, by its name
requests_hard = -1             # no limit; 0 refuses everything
"""

import tomllib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from quire.app.followed_file import followed_file
from quire.errors import InvalidArgument
from quire.protocol.limit_rules import LimitRules, changed_rules
from quire.runtime import Clock


def followed_limits(
    path: str, base: LimitRules, clock: Clock, on_rules: Callable[[LimitRules], None]
) -> AbstractAsyncContextManager[None]:
    """Call `on_rules` with what the file says, now and whenever it changed, for the block. Raises `InvalidArgument` if
    it cannot be used at first; if it cannot be used later, what it said last still counts."""
    return followed_file("limits", path, clock, lambda text: on_rules(changed_rules(base, _tables(text))))


def _tables(text: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgument(f"this is not TOML: {error}") from error
