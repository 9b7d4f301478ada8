"""The front door: which URIs lead where, and what is said of those that lead nowhere."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.streams.namespace_world import SETTINGS, STORE, URI, World, in_namespace

import quire
from quire.client import Client, connect
from quire.errors import InvalidArgument, InvalidUri
from quire.ledger.bookies.pool import PoolSettings
from quire.ledger.settings import LedgerSettings
from quire.proxy.client.settings import ProxyClientSettings
from quire.stream.namespace import open_namespace


@pytest.mark.parametrize(
    ("uri", "problem", "hint"),
    [
        ("file:", "names no folder", "file:./data"),
        ("file://elsewhere/data", "names the host 'elsewhere'", "file:./data"),
        ("file:./data?namespace=team//a", "is no namespace", "?namespace=/team"),
        ("file:./data?bookies=3", "may only have one parameter", "file:./data"),
        ("file:./%ff", "are not UTF-8", "file:./data"),
        ("quire://127.0.0.1:7400", "names no namespace", "quire://host:port/namespace"),
        ("QUIRE:///ns", "names no proxy", "quire://host:port/namespace"),
        ("quire:proxy/ns", "is no URI of proxies", "quire://host:port/namespace"),
        ("quire://proxy:70000/ns", "names the port 70000", "quire://host:port/namespace"),
        ("quire://proxy,/ns", "is no host and port", "quire://host:port/namespace"),
        ("quire://proxy/messaging/ns", "which is no namespace", "quire://host:port/namespace"),
        ("zk+hierarchical://zk1:2181/ledgers", "names a ledger cluster", "quire.ledgers"),
        ("sqlite:./m.db", "names a ledger cluster", "quire.ledgers"),
        ("memory:", "names a ledger cluster", "quire.ledgers"),
        ("http://host/ns", "no namespace is reached", "distributedlog://"),
        ("./data", "no namespace is reached", "distributedlog://"),
        ("", "no namespace is reached", "distributedlog://"),
        ("distributedlog://zk1:2181", "is no URI of a namespace", "distributedlog://"),
        ("distributedlog+sqlite:./metadata.db", "names no namespace", "distributedlog+sqlite:"),
    ],
)
def test_a_uri_that_leads_nowhere_is_refused_at_once(uri: str, problem: str, hint: str) -> None:
    with pytest.raises(InvalidUri, match=problem) as refused:
        connect(uri)
    assert hint in refused.value.hint


@pytest.mark.parametrize("uri", ["./data", "http://host/ns", "distributedlog://zk1:2181", "memory:"])
@pytest.mark.parametrize("door", [quire.connect, quire.sync.connect])
def test_the_hint_for_a_bad_uri_begins_with_what_most_people_want(door: Callable[[str], object], uri: str) -> None:
    """A folder and proxies, before the forms for those who reach bookies themselves."""
    with pytest.raises(InvalidUri) as refused:
        door(uri)
    assert "file:./data, quire://proxy:7400/ns, distributedlog://" in refused.value.hint


@pytest.mark.parametrize(
    "uri",
    [
        "distributedlog://zk1:2181;zk2:2181/ns",
        "distributedlog-bk://zk1:2181/ns",
        "distributedlog+etcd://host:2379/ns",
        "distributedlog+sqlite:./data/metadata.db/ns",
        "distributedlog+memory:name/ns",
        "quire://127.0.0.1:7400/default",
        "QUIRE://proxy1,proxy2:7401,[::1]:7400/default/",
    ],
)
def test_every_scheme_of_a_namespace_is_taken(uri: str) -> None:
    """Nothing is opened before the block begins, so none of these servers has to exist."""
    with pytest.warns(RuntimeWarning, match="was never opened"):
        assert hasattr(connect(uri), "__aenter__")


def test_the_door_takes_what_a_namespace_takes() -> None:
    ours, theirs = (dict(inspect.signature(door).parameters) for door in (connect, open_namespace))
    del theirs["copies_max"]  # Known from the URI: only a folder has one.
    del theirs["store"]  # The same.
    del ours["proxy_settings"]
    strip = {name: parameter.replace(annotation=None) for name, parameter in ours.items()}
    assert strip == {name: parameter.replace(annotation=None) for name, parameter in theirs.items()}
    annotations = {name: parameter.annotation for name, parameter in theirs.items() if name != "uri"}
    assert {name: each.annotation for name, each in ours.items() if name != "uri"} == annotations


@pytest.mark.parametrize(
    "option",
    [
        {"settings_file": "settings.toml"},
        {"ledger_settings": LedgerSettings()},
        {"placement": "region-aware"},
        {"pool_settings": PoolSettings()},
        {"store_settings": STORE},
    ],
    ids=lambda option: next(iter(option)),
)
def test_what_only_proxies_could_follow_is_refused_at_once(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(option))):
        connect("quire://proxy/ns", **option)


def test_settings_of_proxies_are_refused_where_there_are_none() -> None:
    with pytest.raises(InvalidArgument, match="no proxies"):
        connect(URI, proxy_settings=ProxyClientSettings())


def test_whoever_does_not_use_proxies_does_not_wait_for_their_client() -> None:
    """`quire.client` knows its settings, and nothing else of it."""
    program = "import sys, quire.client; print([name for name in sys.modules if 'grpc' in name or 'proxy' in name])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split("[")[1].strip(" ]\n") == (
        "'quire.proxy', 'quire.proxy.client', 'quire.proxy.client.settings'"
    )


def test_records_go_in_and_come_out() -> None:
    async def check(world: World) -> None:
        runtime = world.sim.host("program").runtime
        async with quire.connect(URI, settings=SETTINGS, store_settings=STORE, runtime=runtime) as client:
            assert isinstance(client, Client)
            await client.create_stream("orders")
            await client.create_stream("orders")
            async with client.open_writer("orders") as writer:
                first = await writer.append(b"paid", txid=1)
                await writer.append_many([b"a", b"b"], txids=[2, 3])
            await client.seal_stream("orders")
            async with client.open_reader("orders", start=quire.txid(2)) as reader:
                assert [record.payload async for record in reader] == [b"a", b"b"]
            async with client.open_reader("orders", start=first) as reader:
                assert [record.txid async for record in reader] == [1, 2, 3]

    in_namespace(check, bookies=3)
