"""Structured events: one for each decision, named like `disk.almost_full`, with facts instead of sentences.

    log = logger("bookie", bookie_id=bookie_id)
    log.warning("disk.almost_full", free_bytes=free_bytes)

Events are records of the standard `logging` loggers below "quire", so that a program which embeds Quire sees, filters
and formats them as it does all others; without any configuration they go nowhere. Such a record's message reads
`disk.almost_full free_bytes=12`, and it has the attributes `event` and `facts`. Only commands call `configure`.

structlog, which draws the lines for people, takes a good part of a program's start to load: only those who look at such
lines wait for it.
"""

import json as json_format
import logging
import math
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Self, TextIO

_ROOT: Final = "quire"
_OURS: Final = "quire-events"  # The name of the handler that `configure` puts in place.
_SELDOM_S: Final = 10.0
_STACK_FRAMES: Final = 3  # Between a record and the code that logged it: ours.

logging.getLogger(_ROOT).addHandler(logging.NullHandler())  # Else `logging` writes warnings to stderr by itself.


class Logger:
    """Writes events to one standard logger. The facts it was made with are part of each of them."""

    __slots__ = ("_facts", "_to")

    def __init__(self, to: logging.Logger, facts: dict[str, object]) -> None:
        self._to, self._facts = to, facts

    def bind(self, **facts: object) -> Self:
        """The same with more facts."""
        return type(self)(self._to, {**self._facts, **facts})

    def debug(self, event: str, **facts: Any) -> None:
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log(logging.ERROR, event, facts)

    def critical(self, event: str, **facts: Any) -> None:
        self._log(logging.CRITICAL, event, facts)

    def exception(self, event: str, **facts: Any) -> None:
        """An error, with that which is being handled."""
        self._log(logging.ERROR, event, {"exc_info": True, **facts})

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if self._to.isEnabledFor(level):
            exc_info = facts.pop("exc_info", None)
            facts = {**self._facts, **facts}
            message = " ".join([event, *(f"{name}={_shown(value)}" for name, value in facts.items())])
            extra = {"event": event, "facts": facts}
            # As an argument: a message may contain a percent sign.
            self._to.log(level, "%s", message, exc_info=exc_info, extra=extra, stacklevel=_STACK_FRAMES)


def logger(name: str, **facts: object) -> Logger:
    """The logger "quire.`name`". The facts are part of each of its events."""
    return Logger(logging.getLogger(f"{_ROOT}.{name}"), facts)


class Seldom:
    """Logs an event that strangers can cause at will: the first at once, later ones at most every ten seconds, each
    with the number of `times` it came since. So the log does not grow with their number."""

    __slots__ = ("_event", "_log", "_next_s", "_times")

    def __init__(self, log: Callable[..., None], event: str) -> None:
        self._log, self._event = log, event
        self._times, self._next_s = 0, -math.inf

    def __call__(self, now_s: float, **facts: Any) -> None:
        """It came once more. The facts are those of this time."""
        self._times += 1
        if now_s >= self._next_s:
            self._next_s = now_s + _SELDOM_S
            times, self._times = self._times, 0
            self._log(self._event, times=times, **facts)


def configure(*, json: bool | None = None, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write this process's events to `stream`, stderr unless told otherwise. For commands; a library never calls this.

    JSON lines if `json`, else lines for people; by default the latter on a terminal only. Of other libraries only
    warnings are shown. May be called again: the last call counts.
    """
    stream = sys.stderr if stream is None else stream
    on_terminal = stream.isatty()
    handler = logging.StreamHandler(stream)
    handler.set_name(_OURS)
    as_json = not on_terminal if json is None else json
    handler.setFormatter(_Lines(_json_line if as_json else _readable(colours=on_terminal)))
    root = logging.getLogger()
    for old in [each for each in root.handlers if each.get_name() == _OURS]:
        root.removeHandler(old)
    root.addHandler(handler)
    logging.getLogger(_ROOT).setLevel(level)


def _shown(value: object) -> str:
    """On one line, and unmistakable: what came from the network must not be able to look like another event."""
    plain = isinstance(value, str) and value.isprintable() and value and not any(mark in value for mark in " ='\"\\")
    return str(value) if plain else repr(value)


class _Lines(logging.Formatter):
    """One line for each record, of Quire or of another library."""

    def __init__(self, render: Callable[[dict[str, Any]], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
        }
        facts = getattr(record, "facts", {})
        line |= {f"{name}_" if name in line or name == "exception" else name: value for name, value in facts.items()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = self.formatException(record.exc_info)
        return self._render(line)


def _json_line(line: dict[str, Any]) -> str:
    return json_format.dumps(line, default=str, ensure_ascii=False)


def _readable(*, colours: bool) -> Callable[[dict[str, Any]], str]:
    import structlog.dev

    console = structlog.dev.ConsoleRenderer(
        colors=colours,
        repr_native_str=True,  # Control characters of a value must not reach the terminal.
        sort_keys=False,
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return lambda line: str(console(None, "", line))
