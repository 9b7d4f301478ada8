"""Drivers are found by scheme; what is missing is named, with what to install or write."""

import sys
from importlib import import_module
from importlib.metadata import EntryPoint

import pytest

from quire.errors import InvalidUri, MissingExtra, UnknownScheme
from quire.metadata import open_store
from quire.metadata.registry import ENTRY_POINT_GROUP, _load, load_driver


def test_the_four_drivers_of_the_package_are_known() -> None:
    for scheme in ("memory", "sqlite", "zk", "etcd"):
        assert callable(load_driver(scheme))


def test_an_unknown_scheme_is_named_with_the_known_ones() -> None:
    with pytest.raises(UnknownScheme, match="consul") as caught:
        load_driver("consul")
    assert "etcd, memory, sqlite, zk" in caught.value.hint


@pytest.mark.parametrize(("scheme", "module", "extra"), [("zk", "kazoo", "zookeeper"), ("etcd", "grpc", "etcd")])
def test_a_missing_library_is_named_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, extra: str
) -> None:
    for loaded in [name for name in sys.modules if name.startswith(("quire.metadata.drivers", module))]:
        monkeypatch.delitem(sys.modules, loaded)
    monkeypatch.setitem(sys.modules, module, None)  # What Python itself does for a module that must not be found.
    with pytest.raises(MissingExtra, match=module) as caught:
        load_driver(scheme)
    assert f"quirelog[{extra}]" in caught.value.hint


def test_a_driver_of_another_package_that_misses_a_module_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("consul", "surely_not_installed.driver:open_driver", ENTRY_POINT_GROUP)
    with pytest.raises(MissingExtra, match="surely_not_installed"):
        _load("consul", point.load)


def test_a_broken_installation_of_our_own_is_not_blamed_on_an_extra() -> None:
    with pytest.raises(ModuleNotFoundError):
        _load("broken", lambda: import_module("quire.metadata.drivers.surely_not_there"))


async def test_a_malformed_uri_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(InvalidUri):
        async with open_store("zk://"):
            raise AssertionError("opened")
