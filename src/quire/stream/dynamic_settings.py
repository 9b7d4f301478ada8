"""Settings of streams that an operator changes while programs run: a TOML file that is read again and again.

    [default]                      # of every stream
    retention_s = 86400

    ["metrics/*"]                  # of the streams that a pattern fits: `*`, `?` and `[abc]`, also across slashes
    compression = "lz4"

    [orders]                       # of one stream; one that is called `default` takes a pattern: ["defaul[t]"]
    ack_quorum = 3

Names are those of `StreamSettings`. What a later table says counts before what an earlier one says, and what is said of
a stream by its own name counts before all patterns; what a program gives to `open_writer` or `open_reader` itself
counts before the file.

Everything counts for what is opened later. What is open adopts `ADOPTED` only: buffering and entries when the next
segment begins, quorums with the next ledger, rolling and retention when they are next looked at. The rest could not be
changed in the middle, or, as digest and password, not at all: those are no business of this file.

Invariant: a file that cannot be used changes nothing. The last good one counts on, and an event says what is wrong.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any, Final, Unpack

from quire.codec.stream_metadata.names import stream_name
from quire.errors import InvalidArgument
from quire.runtime import Runtime, StrPath
from quire.stream.settings import StreamOverrides, StreamSettings, check_kind
from quire.telemetry.events import logger
from quire.values import dataclass

RELOAD_INTERVAL_S: Final = 60.0
FILE_BYTES_MAX: Final = 1 << 20

ADOPTED: Final = (
    "ensemble",
    "write_quorum",
    "ack_quorum",
    "transmit",
    "entry_bytes",
    "buffer_bytes",
    "flush_interval_s",
    "in_flight_entries",
    "commit_delay_s",
    "keepalive_s",
    "compression",
    "roll_interval_s",
    "roll_bytes",
    "retention_s",
    "retention_bytes",
    "truncated_only",
)
"""What an open writer takes over, at the moments that are named above."""

_DEFAULT: Final = "default"
_PATTERN_CHARACTERS: Final = frozenset("*?[")
_WITHHELD: Final = ("digest", "password")
_NAMES: Final = tuple(field.name for field in fields(StreamSettings) if field.name not in _WITHHELD)
_log = logger("stream")

Changes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The tables of one file, each checked by itself."""

    default: Changes
    patterns: tuple[tuple[str, Changes], ...]  # In the order of the file.
    streams: Mapping[str, Changes]

    def changes(self, stream: str) -> dict[str, Any]:
        """What the file says of a stream."""
        said = dict(self.default)
        for pattern, changes in self.patterns:
            if fnmatchcase(stream, pattern):
                said |= changes
        said |= self.streams.get(stream, {})
        return said


NO_FILE: Final = SettingsFile({}, (), {})


def parse_settings(content: bytes, base: StreamSettings) -> SettingsFile:
    """Raises `InvalidArgument` that names the table and the line in it that is wrong.

    `base` are the settings that the tables change: each of them has to make sense on top of it.
    """
    import tomllib  # Few programs have such a file, and the others do not wait for its format.

    try:
        tables = tomllib.loads(content.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidArgument(f"the settings of streams are not TOML: {error}") from error
    checked = {name: _checked(name, table) for name, table in tables.items()}
    default = checked.pop(_DEFAULT, {})
    patterns = tuple((name, table) for name, table in checked.items() if _PATTERN_CHARACTERS & set(name))
    streams = {stream_name(name): table for name, table in checked.items() if not _PATTERN_CHARACTERS & set(name)}
    for name, table in {_DEFAULT: {}, **dict(patterns), **streams}.items():
        _combined(base, {**default, **table}, name)
    return SettingsFile(default, patterns, streams)


def _checked(name: str, table: object) -> Changes:
    if not isinstance(table, dict):
        raise InvalidArgument(f"{name!r} is not in a table", hint=f"Put it below [{_DEFAULT}], or below a stream.")
    return {key: _value(name, key, value) for key, value in table.items()}


def _value(table: str, name: str, value: object) -> object:
    if name not in _NAMES:
        import difflib  # For mistakes only.

        near = difflib.get_close_matches(name, _NAMES, n=1)
        asked = f"Did you mean {near[0]}? " if near else ""
        raise InvalidArgument(
            f"[{table}]: streams have no setting {name!r} here", hint=f"{asked}There are: {', '.join(_NAMES)}."
        )
    try:
        check_kind(name, value)
    except InvalidArgument as error:
        raise InvalidArgument(f"[{table}]: {error}") from error
    return value


def _combined(base: StreamSettings, changes: Changes, table: str) -> StreamSettings:
    try:
        return replace(base, **changes)
    except InvalidArgument as error:
        raise InvalidArgument(f"[{table}]: {error}", hint=error.hint) from error


def adopted(running: StreamSettings, newest: StreamSettings) -> StreamSettings:
    """The settings of something that is open, after a change of the file."""
    return replace(running, **{name: getattr(newest, name) for name in ADOPTED})


class DynamicSettings:
    """The settings of all streams of a namespace, as they are now. Made by `follow_settings`."""

    def __init__(self, base: StreamSettings, file: SettingsFile = NO_FILE, *, copies_max: int | None = None) -> None:
        self.base, self._file, self._copies_max = base, file, copies_max

    def of(self, stream: str, **overrides: Unpack[StreamOverrides]) -> StreamSettings:
        """Those of one stream. `overrides` count before everything else. Raises `InvalidArgument`."""
        unknown = sorted(set(overrides) - {field.name for field in fields(StreamSettings)})
        if unknown:
            raise InvalidArgument(
                f"streams have no setting {unknown[0]!r}",
                hint=f"There are: {', '.join(field.name for field in fields(StreamSettings))}.",
            )
        settings = self._combine(stream, overrides)
        return settings if self._copies_max is None else settings.with_copies_at_most(self._copies_max)

    def _combine(self, stream: str, overrides: Changes) -> StreamSettings:
        """Two patterns may fit one stream and not each other: then the file is left out rather than the stream."""
        said = self._file.changes(stream)
        try:
            return replace(self.base, **{**said, **overrides})
        except InvalidArgument as error:
            if not said:
                raise
            settings = replace(self.base, **overrides)  # Raises if it is the caller who is wrong.
            _log.warning("settings.unfit", stream=stream, problem=str(error))
            return settings


@asynccontextmanager
async def follow_settings(
    runtime: Runtime,
    base: StreamSettings,
    path: StrPath | None,
    *,
    reload_interval_s: float = RELOAD_INTERVAL_S,
    copies_max: int | None = None,
) -> AsyncIterator[DynamicSettings]:
    """Settings that follow the file at `path` while the block runs; without a path, `base` and nothing else.

    With `copies_max` nobody gets more copies than that, whatever is asked for. Raises `InvalidArgument` if the file is
    missing, or wrong, at the beginning: nobody knows then what was meant.
    """
    if path is None:
        yield DynamicSettings(base, copies_max=copies_max)
        return
    if not reload_interval_s > 0:
        raise InvalidArgument(f"{reload_interval_s} s is no interval to read a file in")
    content = await _read(runtime, path)
    settings = DynamicSettings(base, _parse(content, base, path), copies_max=copies_max)
    follower = asyncio.create_task(
        _follow(runtime, settings, path, content, reload_interval_s), name=f"follow the settings in {path}"
    )
    try:
        yield settings
    finally:
        follower.cancel()
        await asyncio.wait([follower])


async def _follow(runtime: Runtime, settings: DynamicSettings, path: StrPath, seen: bytes, interval_s: float) -> None:
    """Look at the file at each interval. A problem is told once, and not again until the file, or it, changes."""
    told = ""
    while True:
        await runtime.clock.sleep(interval_s)
        try:
            content = await _read(runtime, path)
            if content != seen:
                settings._file = _parse(content, settings.base, path)
                seen = content
                _log.info("settings.changed", path=str(path))
            told = ""
        except InvalidArgument as error:
            if str(error) != told:
                told = str(error)
                _log.warning("settings.refused", path=str(path), problem=told)


async def _read(runtime: Runtime, path: StrPath) -> bytes:
    try:
        async with await runtime.disk.open(path) as file:
            content = await file.pread(FILE_BYTES_MAX + 1, 0)
    except OSError as error:
        raise InvalidArgument(
            f"the settings of streams cannot be read from {str(path)!r}: {error.strerror or error}", path=str(path)
        ) from error
    if len(content) > FILE_BYTES_MAX:
        raise InvalidArgument(f"{str(path)!r} is larger than settings of streams may be", bytes_max=FILE_BYTES_MAX)
    return content


def _parse(content: bytes, base: StreamSettings, path: StrPath) -> SettingsFile:
    try:
        return parse_settings(content, base)
    except InvalidArgument as error:
        raise InvalidArgument(f"{str(path)!r}: {error}", hint=error.hint, path=str(path)) from error
