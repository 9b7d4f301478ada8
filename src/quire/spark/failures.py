"""What a failed query is about, in a sentence: Spark tells it as a page of tracebacks, from the inside out.

An error of ours that was raised in one of Spark's processes is found again by its name, with its hint. What Spark
itself has to say is cut down to its first paragraph, without the tree of the query that follows it.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from quire import errors
from quire.errors import InvalidArgument, QueryFailed, QuireError

# As Python ends a traceback: module, class, message; then the hint, which `quire.spark.explain` adds as a note.
_OURS: Final = re.compile(r"^\s*(?:pyspark\S*: )?quire\.errors\.\w+\.(\w+): (.+?)$(?:\n(\w[^\n]+)$)?", re.MULTILINE)
_TREE: Final = re.compile(r"\n\s*(?:== SQL|'?[A-Z]\w+ |;\n)")
_CODE: Final = re.compile(r"^\[[A-Z_.]+\] ")
_STATE: Final = re.compile(r"\s*SQLSTATE: ")
_CHARACTERS_MAX: Final = 500
_CAUSES_MAX: Final = 20


def spark_errors() -> tuple[type[BaseException], ...]:
    """What to catch around a query."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return (PySparkException, Py4JError)


def told_by(error: BaseException) -> QuireError:
    """The same error as one of ours, caused by the given one."""
    told = _found(list(_texts(error)), is_mistake=type(error).__name__ in ("AnalysisException", "ParseException"))
    told.__cause__ = error
    return told


def _texts(error: BaseException) -> Iterator[str]:
    """What the error says, and what each error of Java's behind it says."""
    yield str(error)
    java: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    for _ in range(_CAUSES_MAX):
        if java is None:
            return
        yield str(java.getMessage() or java.toString())
        java = java.getCause()


def _found(texts: Sequence[str], *, is_mistake: bool) -> QuireError:
    ours = [match for text in texts for match in _OURS.finditer(text)]
    if ours:
        kind, message, hint = ours[-1].groups()
        known = getattr(errors, kind, QuireError)
        hint = "" if hint is None or hint.startswith(("SQLSTATE", "at ")) else hint
        found: QuireError = known(message, hint=hint)
        return found
    if is_mistake:
        return InvalidArgument(_short(texts[0]), hint=_hint(texts[0]))
    return QueryFailed(_short(texts[-1]))


def _short(text: str) -> str:
    first = _STATE.split(_TREE.split(text.strip(), maxsplit=1)[0])[0]
    sentence = " ".join(_CODE.sub("", first).split())
    return sentence if len(sentence) <= _CHARACTERS_MAX else sentence[:_CHARACTERS_MAX] + "…"


def _hint(text: str) -> str:
    if "TABLE_OR_VIEW_NOT_FOUND" in text:
        return "Each stream is a table. `SHOW TABLES` lists them; write names that are no plain words in `backticks`."
    return ""
