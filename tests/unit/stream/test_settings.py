"""Settings of streams: what a value may be, wherever it is given."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from tests.support.streams.namespace_world import World, in_namespace

from quire.errors import InvalidArgument
from quire.proxy.client.settings import with_overrides
from quire.stream.settings import StreamOverrides, StreamSettings
from quire.types import DigestType


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("roll_bytes", "oops", "roll_bytes takes a whole number, not 'oops'"),
        ("roll_bytes", 1.5, "roll_bytes takes a whole number, not 1.5"),
        ("ack_quorum", True, "ack_quorum takes a whole number, not True"),
        ("retention_s", "1d", "retention_s takes a number, not '1d'"),
        ("retention_s", None, "retention_s takes a number, not None"),
        ("commit_delay_s", False, "commit_delay_s takes a number, not False"),
        ("write_lock", 1, "write_lock takes true or false, not 1"),
        ("compression", 4, "compression takes text, not 4"),
        ("digest", "crc32", "digest takes a DigestType, not 'crc32'"),
        ("password", "secret", "password takes bytes, not str"),
    ],
)
def test_a_value_of_another_kind_is_refused_before_anything_is_opened(name: str, value: Any, said: str) -> None:
    """As a setting of a client, and as that of one writer or reader."""

    async def check(world: World) -> None:
        namespace: Any = world.namespace
        for opening in (namespace.open_writer, namespace.open_reader, namespace.settings_for):
            with pytest.raises(InvalidArgument) as caught:
                opening("orders", **{name: value})
            assert str(caught.value) == said

    in_namespace(check)
    with pytest.raises(InvalidArgument, match="takes"):
        StreamSettings(**{name: value})


def test_a_client_of_proxies_refuses_it_too() -> None:
    with pytest.raises(InvalidArgument, match="in_flight_entries takes a whole number, not 'many'"):
        with_overrides(StreamSettings(), {"in_flight_entries": "many"})  # type: ignore[typeddict-item]


def test_values_of_the_right_kind_are_taken() -> None:
    assert StreamSettings(retention_s=60, digest=DigestType.CRC32C, password=b"secret").retention_s == 60


def test_type_checkers_know_every_setting() -> None:
    """A misspelled override, or one of the wrong type, is found before the program runs."""
    known = get_type_hints(StreamSettings)
    assert get_type_hints(StreamOverrides) == {each.name: known[each.name] for each in fields(StreamSettings)}
    assert StreamOverrides.__required_keys__ == frozenset()
