"""Settings by name: the right field changes, and mistakes are told with what would have been right."""

from dataclasses import dataclass, field

import pytest

from quire.app.overrides import setting_names, with_overrides
from quire.app.proxy import ProxySettings
from quire.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Inner:
    bytes_max: int = 10
    interval_s: float = 1.5
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Outer:
    name: str = "unchangeable"
    port: int = 1
    inner: Inner = field(default_factory=Inner)


def test_fields_change_and_nothing_else() -> None:
    changed = with_overrides(
        Outer(), ["inner.bytes_max=64MiB", "inner.interval_s=0.25", "inner.checked=false", "port=7"]
    )
    assert changed == Outer("unchangeable", 7, Inner(64 << 20, 0.25, False))
    assert with_overrides(Outer(), []) == Outer()


def test_settings_that_only_fit_together_may_be_given_in_any_order() -> None:
    one = ["stream.ensemble=1", "stream.write_quorum=1", "stream.ack_quorum=1"]
    for assignments in (one, one[::-1]):
        stream = with_overrides(ProxySettings(), assignments).stream
        assert (stream.ensemble, stream.write_quorum, stream.ack_quorum) == (1, 1, 1)
    with pytest.raises(InvalidArgument, match="do not fit together"):
        with_overrides(ProxySettings(), one[:1])
    assert with_overrides(Outer(), ["port=7", "port=8"]).port == 8


def test_every_name_is_listed() -> None:
    names = dict(setting_names(Outer()))
    assert names == {"port": 1, "inner.bytes_max": 10, "inner.interval_s": 1.5, "inner.checked": True}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("inner.bytes_max", "NAME=VALUE"),
        ("inner.byte_max=1", "inner.bytes_max"),
        ("inner=1", "there is no setting"),
        ("name=x", "there is no setting"),
        ("port.deeper=1", "there is no setting"),
        ("inner.bytes_max=many", "whole number"),
        ("inner.bytes_max=1 parsec", "whole number"),
        ("inner.interval_s=soon", "is a number"),
        ("inner.checked=perhaps", "true or false"),
    ],
)
def test_mistakes_are_explained(assignment: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        with_overrides(Outer(), [assignment])
    assert said in f"{caught.value} {caught.value.hint}"
