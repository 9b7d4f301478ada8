"""Structured events: one for each decision, named like `disk.almost_full`, with facts instead of sentences.

    log = logger("bookie", bookie_id=bookie_id)
    log.warning("disk.almost_full", free_bytes=free_bytes)

Events are records of the standard `logging` loggers below "quire", so that a program which embeds Quire sees, filters
and formats them as it does all others; without any configuration they go nowhere. Such a record's message reads
`disk.almost_full free_bytes=12`, and it has the attributes `event` and `facts`. Only commands call `configure`.
"""

import json as json_format
import logging
import sys
from collections.abc import Callable, MutableMapping
from datetime import UTC, datetime
from typing import Any, Final, TextIO, cast

import structlog

Logger = structlog.stdlib.BoundLogger

_ROOT: Final = "quire"
_OURS: Final = "quire-events"  # The name of the handler that `configure` puts in place.
_STACK_FRAMES: Final = 4  # Between a record and the code that logged it; the first three are structlog's.

logging.getLogger(_ROOT).addHandler(logging.NullHandler())  # Else `logging` writes warnings to stderr by itself.


def logger(name: str, **facts: object) -> Logger:
    """The logger "quire.`name`". The facts are part of each of its events."""
    wrapped = structlog.wrap_logger(
        logging.getLogger(f"{_ROOT}.{name}"),
        processors=[structlog.stdlib.filter_by_level, _to_record],
        wrapper_class=Logger,
        context_class=dict,
        cache_logger_on_first_use=True,
    )
    return cast(Logger, wrapped.bind(**facts))


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


def _to_record(_: object, __: str, facts: MutableMapping[str, Any]) -> tuple[tuple[str], dict[str, Any]]:
    """Turn an event into the arguments of a `logging.Logger` method."""
    event, exc_info = str(facts.pop("event", "")), facts.pop("exc_info", None)
    message = " ".join([event, *(f"{name}={_shown(value)}" for name, value in facts.items())])
    extra = {"event": event, "facts": dict(facts)}
    return (message,), {"extra": extra, "exc_info": exc_info, "stacklevel": _STACK_FRAMES}


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
    console = structlog.dev.ConsoleRenderer(
        colors=colours,
        repr_native_str=True,  # Control characters of a value must not reach the terminal.
        sort_keys=False,
        pad_event_to=0,
        exception_formatter=structlog.dev.plain_traceback,
    )
    return lambda line: str(console(None, "", line))
