"""As much of PromQL as our alert rules use, evaluated over given samples the way Prometheus does it.

Instant and range selectors with `=` matchers, `rate` and `increase` with their extrapolation to the edges of the
window, `predict_linear`, `histogram_quantile`, `sum by`, `absent`, comparisons with a number, `or`, products of
numbers. Whatever else an expression holds is an error, so that a rule cannot be misunderstood in silence.

    evaluate('rate(adds_total[5m]) > 2', series, at_s=600.0)     # the series that are left, with their values
"""

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

Labels = frozenset[tuple[str, str]]
Points = list[tuple[float, float]]  # Seconds, and the value then; in order.
Vector = dict[Labels, float]

_LOOKBACK_S: Final = 300.0  # A sample counts so long, if no newer one comes.
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<word>[a-zA-Z_:][\w:]*)|(?P<selector>\{[^}]*\})|(?P<range>\[\d+[smhd]\])"
    r"|(?P<sign>==|[><(),*]))"
)
_COMPARED: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


class Series(NamedTuple):
    name: str
    labels: Labels
    points: Points


def seconds(duration: str) -> float:
    return float(duration[:-1]) * _UNITS[duration[-1]]


def evaluate(text: str, series: Sequence[Series], at_s: float) -> Vector:
    """The value of an expression that yields a vector. A rule of it fires for each series that is there."""
    found = _Evaluation(text, series, at_s).whole()
    assert isinstance(found, dict), text
    return found


class _Evaluation:
    """A parser that computes while it reads."""

    def __init__(self, text: str, series: Sequence[Series], at_s: float) -> None:
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text.rstrip()):
            match = _TOKEN.match(text, at)
            assert match, f"not understood: {text[at:]!r}"
            assert match.lastgroup
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            at = match.end()
        self._series, self._at_s = series, at_s

    def whole(self) -> Vector | float:
        value = self._expression()
        assert not self._tokens, self._tokens
        return value

    def _expression(self) -> Vector | float:
        value = self._comparison()
        while self._accept("or"):
            other = self._comparison()
            assert isinstance(value, dict)
            assert isinstance(other, dict)
            value = {**other, **value}
        return value

    def _comparison(self) -> Vector | float:
        value = self._product()
        if self._tokens and self._tokens[0][1] in _COMPARED:
            holds, limit = _COMPARED[self._tokens.pop(0)[1]], self._product()
            assert isinstance(value, dict)
            assert isinstance(limit, float)
            return {labels: each for labels, each in value.items() if holds(each, limit)}
        return value

    def _product(self) -> Vector | float:
        value = self._atom()
        while self._accept("*"):
            other = self._atom()
            assert isinstance(value, float)
            assert isinstance(other, float)
            value *= other
        return value

    def _atom(self) -> Vector | float:
        kind, token = self._tokens.pop(0)
        if kind == "number":
            return float(token)
        assert kind == "word", token
        if token == "sum":
            return self._sum_by()
        if not self._accept("("):
            chosen = self._select(token)
            return {labels: points[-1][1] for labels, points in chosen.items() if points}
        match token:
            case "rate" | "increase":
                found, span_s = self._window()
                result = {each: _increase(points, self._at_s, span_s) for each, points in found.items()}
                by_s = span_s if token == "rate" else 1.0
                value: Vector = {each: much / by_s for each, much in result.items() if much is not None}
            case "predict_linear":
                found, _ = self._window()
                self._expect(",")
                ahead_s = self._expression()
                assert isinstance(ahead_s, float)
                value = {
                    each: _line_at(points, self._at_s, ahead_s) for each, points in found.items() if len(points) > 1
                }
            case "histogram_quantile":
                share = self._expression()
                self._expect(",")
                buckets = self._expression()
                assert isinstance(share, float)
                assert isinstance(buckets, dict)
                value = _quantiles(share, buckets)
            case "absent":
                inner = self._expression()
                assert isinstance(inner, dict)
                value = {} if inner else {frozenset(): 1.0}
            case _:
                raise AssertionError(f"no function that is known here: {token}")
        self._expect(")")
        return value

    def _sum_by(self) -> Vector:
        self._expect("by")
        self._expect("(")
        kept = set()
        while not self._accept(")"):
            kept.add(self._tokens.pop(0)[1])
        self._expect("(")
        inner, total = self._expression(), Vector()
        assert isinstance(inner, dict)
        for labels, value in inner.items():
            key = frozenset(each for each in labels if each[0] in kept)
            total[key] = total.get(key, 0.0) + value
        self._expect(")")
        return total

    def _window(self) -> tuple[Mapping[Labels, Points], float]:
        name = self._tokens.pop(0)[1]
        at = 1 if self._tokens[0][0] == "selector" else 0
        kind, span = self._tokens[at]
        assert kind == "range", span
        span_s = seconds(span[1:-1])
        found = self._select(name, span_s)
        assert self._tokens.pop(0)[0] == "range"
        return found, span_s

    def _select(self, name: str, span_s: float = _LOOKBACK_S) -> dict[Labels, Points]:
        wanted: set[tuple[str, str]] = set()
        if self._tokens and self._tokens[0][0] == "selector":
            inside = self._tokens.pop(0)[1][1:-1]
            wanted = set(re.findall(r'(\w+)="([^"]*)"', inside))
            assert len(wanted) == inside.count("=") == inside.count('"') // 2, inside
        return {
            each.labels: [point for point in each.points if self._at_s - span_s < point[0] <= self._at_s]
            for each in self._series
            if each.name == name and wanted <= each.labels
        }

    def _accept(self, token: str) -> bool:
        if self._tokens and self._tokens[0][1] == token:
            self._tokens.pop(0)
            return True
        return False

    def _expect(self, token: str) -> None:
        assert self._accept(token), (token, self._tokens)


def _increase(points: Points, at_s: float, span_s: float) -> float | None:
    """By how much a counter grew, resets aside, extended to the edges of the window if samples come near to them."""
    if len(points) < 2:
        return None
    grown = sum(new - old if new >= old else new for (_, old), (_, new) in pairwise(points))
    covered_s = points[-1][0] - points[0][0]
    step_s = covered_s / (len(points) - 1)
    before_s, behind_s = points[0][0] - (at_s - span_s), at_s - points[-1][0]
    before_s = before_s if before_s < 1.1 * step_s else step_s / 2
    behind_s = behind_s if behind_s < 1.1 * step_s else step_s / 2
    if grown > 0 and points[0][1] >= 0:  # It cannot have been below zero.
        before_s = min(before_s, covered_s * points[0][1] / grown)
    return grown * (covered_s + before_s + behind_s) / covered_s


def _line_at(points: Points, at_s: float, ahead_s: float) -> float:
    """Where the straight line through the points is then: least squares."""
    xs, ys = [when - at_s for when, _ in points], [value for _, value in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((x - mean_x) ** 2 for x in xs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return mean_y + slope * (ahead_s - mean_x)


def _quantiles(share: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        named = dict(labels)
        bound = math.inf if named["le"] == "+Inf" else float(named["le"])
        groups.setdefault(labels - {("le", named["le"])}, []).append((bound, count))
    found = {}
    for labels, group in groups.items():
        group.sort()
        total = group[-1][1]
        if total == 0 or group[-1][0] != math.inf:
            continue  # Prometheus says NaN, which no comparison lets through.
        rank = share * total
        index = next(number for number, (_, count) in enumerate(group) if count >= rank)
        if index == len(group) - 1:
            found[labels] = group[-2][0]
            continue
        low, under = group[index - 1] if index else (0.0, 0.0)
        high, upto = group[index]
        found[labels] = low + (high - low) * (rank - under) / (upto - under)
    return found
