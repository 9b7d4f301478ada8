"""Which limits count for whom."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidArgument
from quire.protocol.limit_rules import AcquireLimits, LimitRules, changed_rules
from quire.protocol.rate_limits import RateLimits

BASE = LimitRules(
    proxy=RateLimits(bytes_hard=100.0), acquire=AcquireLimits(bytes_per_s=90.0), stream=RateLimits(requests_hard=5.0)
)


def test_what_no_table_says_is_as_the_proxy_is_set() -> None:
    assert changed_rules(BASE, {}) == BASE
    assert BASE.of("any") == RateLimits(requests_hard=5.0)
    changed = changed_rules(BASE, {"proxy": {"requests_soft": 7}})
    assert changed.proxy == RateLimits(bytes_hard=100.0, requests_soft=7.0)
    assert changed.acquire.bytes_per_s == 90.0


def test_the_nearest_table_counts_for_a_stream() -> None:
    rules = changed_rules(
        BASE,
        {
            "streams": {
                "logs/*": {"requests_hard": 1, "bytes_hard": 10},
                "default": {"bytes_soft": 3},
                "logs/a*": {"requests_hard": 2},
                "logs/app": {"bytes_hard": -1},
            }
        },
    )
    assert rules.of("other") == RateLimits(requests_hard=5.0, bytes_soft=3.0)
    assert rules.of("logs/x") == RateLimits(requests_hard=1.0, bytes_hard=10.0, bytes_soft=3.0)
    assert rules.of("logs/a") == RateLimits(requests_hard=2.0, bytes_hard=10.0, bytes_soft=3.0)
    assert rules.of("logs/app") == RateLimits(requests_hard=2.0, bytes_hard=-1.0, bytes_soft=3.0)


@pytest.mark.parametrize(
    ("tables", "named"),
    [
        ({"proxies": {}}, "proxies"),
        ({"proxy": 3}, "proxy"),
        ({"proxy": {"bytes": 3}}, "bytes"),
        ({"proxy": {"bytes_hard": "3"}}, "bytes_hard"),
        ({"proxy": {"bytes_hard": True}}, "bytes_hard"),
        ({"acquire": {"bytes_hard": 3}}, "bytes_hard"),
        ({"namespace": {"bytes_hard": float("nan")}}, "bytes_hard"),
        ({"streams": {"bytes_hard": 3}}, "streams.bytes_hard"),
        ({"streams": {"a": {"rate": 3}}}, "streams.a"),
    ],
)
def test_what_makes_no_sense_is_named(tables: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named) as raised:
        changed_rules(BASE, tables)
    assert raised.value.hint


limits = st.dictionaries(st.sampled_from(["requests_hard", "requests_soft", "bytes_hard"]), st.floats(-1, 1e9))


@given(limits, st.dictionaries(st.sampled_from(["default", "a", "a*", "[ab]", "b"]), limits), st.sampled_from("abc"))
def test_whatever_is_said_of_a_stream_by_its_name_counts(
    proxy: dict[str, float], streams: dict[str, dict[str, float]], name: str
) -> None:
    rules = changed_rules(BASE, {"proxy": proxy, "streams": streams})
    for limit, value in streams.get(name, {}).items():
        assert getattr(rules.of(name), limit) == value
    for limit, value in proxy.items():
        assert getattr(rules.proxy, limit) == value
    if name == "c":
        assert rules.of("c") == rules.stream
