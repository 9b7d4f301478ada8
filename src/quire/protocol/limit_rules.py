"""Which limits of requests and bytes count for whom: a proxy, its namespace, each stream, and taking streams. Sans-IO.

They begin as a proxy's settings, and an operator changes them while it runs: see `quire.app.limits_file` for the file
that says so. A name of a stream may be a pattern.

Invariants:
  AllOrNothing    tables that cannot be used change nothing, and it is said what is wrong with them.
  NearestCounts   what is said of a stream by its name counts before patterns, a later pattern before an earlier one,
                  and all of them before `default`; what none of them says is as the proxy is set.
"""

import difflib
from collections.abc import Mapping
from dataclasses import field, fields, replace
from fnmatch import fnmatchcase
from typing import Final, TypeVar

from quire.errors import InvalidArgument
from quire.protocol.rate_limits import RateLimits
from quire.values import dataclass

T = TypeVar("T")

DEFAULT: Final = "default"
_PATTERN_CHARACTERS: Final = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class AcquireLimits:
    """Above these rates, over the last minute, no further streams are taken. None, or anything below 0, is no limit."""

    requests_per_s: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class LimitRules:
    """All limits of one proxy."""

    proxy: RateLimits = field(default=RateLimits())
    namespace: RateLimits = field(default=RateLimits())
    acquire: AcquireLimits = field(default=AcquireLimits())
    stream: RateLimits = field(default=RateLimits())
    """Of each stream, if nothing more is said of it."""
    patterns: tuple[tuple[str, Mapping[str, float]], ...] = ()
    streams: tuple[tuple[str, Mapping[str, float]], ...] = ()

    def of(self, stream: str) -> RateLimits:
        """Those of one stream."""
        said: dict[str, float] = {}
        for pattern, changes in self.patterns:
            if fnmatchcase(stream, pattern):
                said |= changes
        said |= dict(self.streams).get(stream, {})
        return replace(self.stream, **said) if said else self.stream


def changed_rules(base: LimitRules, tables: Mapping[str, object]) -> LimitRules:
    """`base` with what the tables of a file say. Raises `InvalidArgument` that names the table that is wrong."""
    known = ("proxy", "namespace", "acquire", "streams")
    for name in tables:
        if name not in known:
            raise InvalidArgument(f"there are no limits [{name}]", hint=_hint(name, known))
    streams = {
        name: _changes(f"streams.{name}", table, base.stream)
        for name, table in _table("streams", tables.get("streams", {})).items()
    }
    default = streams.pop(DEFAULT, {})
    return replace(
        base,
        proxy=_changed("proxy", tables, base.proxy),
        namespace=_changed("namespace", tables, base.namespace),
        acquire=_changed("acquire", tables, base.acquire),
        stream=replace(base.stream, **default),
        patterns=tuple((name, said) for name, said in streams.items() if _PATTERN_CHARACTERS & set(name)),
        streams=tuple((name, said) for name, said in streams.items() if not _PATTERN_CHARACTERS & set(name)),
    )


def _changed(name: str, tables: Mapping[str, object], limits: T) -> T:
    changes = _changes(name, tables.get(name, {}), limits)
    changed: T = replace(limits, **changes)  # type: ignore[type-var]
    return changed


def _changes(name: str, table: object, limits: object) -> dict[str, float]:
    known = [each.name for each in fields(limits)]  # type: ignore[arg-type]
    changes: dict[str, float] = {}
    for key, value in _table(name, table).items():
        if key not in known:
            raise InvalidArgument(f"[{name}]: there is no limit {key!r}", hint=_hint(key, known))
        if isinstance(value, bool) or not isinstance(value, int | float) or not -1e300 < value < 1e300:
            raise InvalidArgument(f"[{name}]: {key} takes a number, not {value!r}", hint="-1 is no limit.")
        changes[key] = float(value)
    return changes


def _table(name: str, table: object) -> Mapping[str, object]:
    if not isinstance(table, Mapping):
        raise InvalidArgument(f"{name!r} is not a table", hint=f"Write [{name}], and limits below it.")
    return table


def _hint(name: str, known: "tuple[str, ...] | list[str]") -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
