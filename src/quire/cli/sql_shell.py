"""The prompt of `quire sql`: lines with history and completion, until the person has enough."""

import os
import readline
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from quire.cli.output import err
from quire.spark.sql import quoted, stream_names

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_HISTORY_LINES_MAX: Final = 1000
_ENDS: Final = ("exit", "quit", "\\q", "exit;", "quit;")
_HELP: Final = ("help", "help;", "\\h", "\\?")
_HELP_TEXT: Final = r"""SELECT … FROM orders;   a statement, on one line or several, up to a semicolon
DESCRIBE orders;        the columns of a stream; `eu/orders` for names that are no words of SQL
\d                      all tables: one for each stream, and the views that were made here
Tab, up, down           complete a name; earlier statements
Ctrl-C                  stop the statement that runs, or forget the one that was begun
\q, quit, Ctrl-D        leave"""
_WORDS: Final = ("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "count(*)", "SHOW TABLES;", "DESCRIBE")
_COLUMNS: Final = ("stream", "dlsn", "segment", "entry", "slot", "txid", "time", "payload")


def typed_lines(spark: "SparkSession", uri: str) -> Iterator[str]:
    """What a person types, line by line, without the words that are for the shell itself."""
    names = stream_names(uri)
    err().print(f"Each of {len(names)} streams is a table. End statements with ';'. help tells more, quit leaves.")
    with_history = _history()
    _complete((*_WORDS, *_COLUMNS, *(name if name.isidentifier() else quoted(name) for name in names)))
    begun = False
    try:
        while True:
            try:
                line = input("  ... " if begun else "quire> ")
            except KeyboardInterrupt:
                err().print()
                yield ";"  # Forget what was begun.
                begun = False
                continue
            if not begun and line.strip().lower() in _ENDS:
                return
            if not begun and line.strip().lower() in _HELP:
                err().print(_HELP_TEXT, markup=False, highlight=False)
                continue
            if not begun and line.strip() in ("\\d", "\\dt"):
                line = "SHOW TABLES;"
            if line.strip() or begun:
                begun = not line.rstrip().endswith(";")
                yield line
    except EOFError:
        err().print()
    finally:
        if with_history is not None:
            readline.set_history_length(_HISTORY_LINES_MAX)
            readline.write_history_file(with_history)


def _history() -> Path | None:
    """The file of earlier statements; None where it cannot be kept."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state, "quire", "sql_history")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            readline.read_history_file(path)
    except OSError:
        return None
    return path


def _complete(words: tuple[str, ...]) -> None:
    def match(text: str, state: int) -> str | None:
        found = [word for word in words if word.casefold().startswith(text.casefold())]
        return found[state] if state < len(found) else None

    readline.set_completer(match)
    readline.set_completer_delims(" \t\n,()=<>")
    readline.parse_and_bind("tab: complete")
