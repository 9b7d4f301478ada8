"""The front door: which URIs lead where, and what is said of those that lead nowhere."""

import inspect

import pytest
from tests.unit.stream.namespace_world import SETTINGS, STORE, URI, World, in_namespace

import quire
from quire.client import Client, connect
from quire.errors import InvalidUri
from quire.stream.namespace import Namespace, open_namespace


@pytest.mark.parametrize(
    ("uri", "problem", "hint"),
    [
        ("file:", "names no folder", "file:./data"),
        ("file://elsewhere/data", "names the host 'elsewhere'", "file:./data"),
        ("file:./data?namespace=team//a", "is no namespace", "?namespace=/team"),
        ("file:./data?bookies=3", "may only have one parameter", "file:./data"),
        ("file:./%ff", "are not UTF-8", "file:./data"),
        ("quire://127.0.0.1:7400/default", "proxies are not there yet", "distributedlog://"),
        ("QUIRE://proxy/ns", "proxies are not there yet", "distributedlog://"),
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


@pytest.mark.parametrize(
    "uri",
    [
        "distributedlog://zk1:2181;zk2:2181/ns",
        "distributedlog-bk://zk1:2181/ns",
        "distributedlog+etcd://host:2379/ns",
        "distributedlog+sqlite:./data/metadata.db/ns",
        "distributedlog+memory:name/ns",
    ],
)
def test_every_scheme_of_a_namespace_is_taken(uri: str) -> None:
    """Nothing is opened before the block begins, so none of these servers has to exist."""
    assert hasattr(connect(uri), "__aenter__")


def test_the_door_takes_what_a_namespace_takes() -> None:
    ours, theirs = (dict(inspect.signature(door).parameters) for door in (connect, open_namespace))
    del theirs["copies_max"]  # Known from the URI: only a folder has one.
    strip = {name: parameter.replace(annotation=None) for name, parameter in ours.items()}
    assert strip == {name: parameter.replace(annotation=None) for name, parameter in theirs.items()}
    annotations = {name: parameter.annotation for name, parameter in theirs.items() if name != "uri"}
    assert {name: each.annotation for name, each in ours.items() if name != "uri"} == annotations
    assert Client is Namespace


def test_records_go_in_and_come_out() -> None:
    async def check(world: World) -> None:
        runtime = world.sim.host("program").runtime
        async with quire.connect(URI, settings=SETTINGS, store_settings=STORE, runtime=runtime) as client:
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
