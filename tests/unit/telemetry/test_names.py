"""The table of metrics: complete, and true to the conventions that its opening promises."""

import re

import pytest

from quire.errors import InvariantBroken
from quire.telemetry import names
from quire.telemetry.names import DECLARED, Declared, Kind


@pytest.mark.parametrize("declared", DECLARED.values(), ids=lambda declared: declared.name)
def test_a_name_follows_the_conventions_of_its_origin(declared: Declared) -> None:
    assert re.fullmatch(r"(bookie|bookkeeper_server|bookkeeper_client|replication|quire)_[A-Za-z_]+", declared.name)
    assert declared.help[0].isupper() or declared.help[0].isdigit()
    assert not declared.help.endswith(".")
    if declared.name.startswith("quire_"):
        assert declared.name.islower()
        assert declared.kind is not Kind.OPERATION, "milliseconds are for BookKeeper's own names"
        assert declared.name.endswith("_total") == (declared.kind is Kind.COUNTER)
        assert declared.name.endswith("_seconds") == (declared.kind is Kind.HISTOGRAM)


def test_every_constant_is_in_the_table() -> None:
    constants = [value for value in vars(names).values() if isinstance(value, Declared)]
    assert constants == list(DECLARED.values())


@pytest.mark.parametrize("name", ["bookie_WRITE_BYTES", "quire_bookie_connections_total"])
def test_no_name_is_declared_twice(name: str) -> None:
    """`x` and `x_total` are one name in OpenMetrics."""
    with pytest.raises(InvariantBroken, match="twice"):
        names._declare(Declared(name, Kind.COUNTER, "Once more"))
