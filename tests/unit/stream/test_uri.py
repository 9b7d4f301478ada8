"""Namespace URIs: which store, which namespace, and what is told when one is wrong."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidUri
from quire.metadata import parse_uri
from quire.stream.uri import LOCAL, namespace_in, parse_stream_uri


@pytest.mark.parametrize("scheme", ["distributedlog", "distributedlog-bk", "DistributedLog", "DISTRIBUTEDLOG-BK"])
@pytest.mark.parametrize("servers", ["zk1:2181;zk2:2181", "zk1:2181,zk2:2181"])
def test_a_namespace_in_zookeeper(scheme: str, servers: str) -> None:
    uri = parse_stream_uri(f"{scheme}://{servers}/messaging/ns")
    assert (uri.store.backend, uri.store.servers) == ("zk", ("zk1:2181", "zk2:2181"))
    assert uri.path == uri.store.root == "/messaging/ns"
    assert uri.authority == "zk1:2181,zk2:2181", "as Apache's clients write it into bindings"
    assert not uri.is_local
    assert str(uri) == f"{scheme}://{servers}/messaging/ns"


def test_a_namespace_in_etcd() -> None:
    uri = parse_stream_uri("distributedlog+etcd://host:2379/ns")
    assert (uri.store.backend, uri.store.servers, uri.path, uri.authority) == (
        "etcd",
        ("host:2379",),
        "/ns",
        "host:2379",
    )


@pytest.mark.parametrize(
    ("text", "file", "namespace"),
    [
        ("./data/metadata.db/default", "./data/metadata.db", "/default"),
        ("path/to/metadata.db/ns/deeper", "path/to/metadata.db", "/ns/deeper"),
        ("/var/quire/m.sqlite/ns", "/var/quire/m.sqlite", "/ns"),
        ("///var/quire/m.SQLite3/ns/", "/var/quire/m.SQLite3", "/ns"),
        ("//localhost/var/m.db/ns", "/var/m.db", "/ns"),
        ("folder.db/metadata.db/ns", "folder.db/metadata.db", "/ns"),
        ("a%20folder/m%2edb/n%73", "a folder/m.db", "/ns"),
        ("any/file?namespace=/ns", "any/file", "/ns"),
        ("m.db?namespace=ns", "m.db", "/ns"),
        ("m.db?namespace=/backup.db/x", "m.db", "/backup.db/x"),
        (".db/ns", ".db", "/ns"),
    ],
)
def test_the_file_ends_with_the_last_part_that_looks_like_one(text: str, file: str, namespace: str) -> None:
    uri = parse_stream_uri(f"distributedlog+sqlite:{text}")
    assert (uri.store.backend, uri.store.location, uri.path) == ("sqlite", file, namespace)
    assert uri.authority == LOCAL
    assert parse_uri(uri.store.text).location == file, "the text of the store's own URI means the same"


def test_a_namespace_in_memory() -> None:
    uri = parse_stream_uri("distributedlog+memory:test/ns/deeper")
    assert (uri.store.backend, uri.store.location, uri.path, uri.authority) == ("memory", "test", "/ns/deeper", LOCAL)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "zk://zk1:2181/ns",
        "distributedlog+redis://host/ns",
        "distributedlog:zk1:2181/ns",
        "distributedlog://zk1:2181",
        "distributedlog://zk1:2181/",
        "distributedlog:///ns",
        "distributedlog://zk1:2181//ns",
        "distributedlog://zk1:2181/ns/../other",
        "distributedlog://zk1:99999/ns",
        "distributedlog://zk1:2181/ns?x=1",
        "distributedlog+etcd://host:2379",
        "distributedlog+sqlite:",
        "distributedlog+sqlite:metadata/ns",
        "distributedlog+sqlite:metadata.db",
        "distributedlog+sqlite:metadata.db/",
        "distributedlog+sqlite:metadata.db/a//b",
        "distributedlog+sqlite://host/metadata.db/ns",
        "distributedlog+sqlite:metadata.db/ns?root=/ledgers",
        "distributedlog+sqlite:metadata.db?namespace=/a&namespace=/b",
        "distributedlog+sqlite:metadata.db?namespace=",
        "distributedlog+sqlite:m%ff.db/ns",
        "distributedlog+sqlite:m%00.db/ns",
        "distributedlog+sqlite:?namespace=/ns",
        "distributedlog+memory:",
        "distributedlog+memory:/ns",
        "distributedlog+memory:test",
    ],
)
def test_what_is_no_namespace_is_refused_with_the_forms_that_there_are(text: str) -> None:
    with pytest.raises(InvalidUri) as refused:
        parse_stream_uri(text)
    assert repr(text) in str(refused.value), "the message shows what the caller wrote"
    for form in ("distributedlog://", "distributedlog+etcd://", "distributedlog+sqlite:", "distributedlog+memory:"):
        assert form in refused.value.hint


@given(st.text(max_size=30), st.sampled_from(["", "//", "///", "x.db/"]), st.sampled_from(["", "+sqlite", "+memory"]))
def test_any_text_is_parsed_or_refused(rest: str, begin: str, backend: str) -> None:
    try:
        uri = parse_stream_uri(f"distributedlog{backend}:{begin}{rest}")
    except InvalidUri:
        return
    assert uri.path.startswith("/")
    assert uri.store.root == uri.path


@pytest.mark.parametrize("store", ["sqlite:/data/metadata.db", "sqlite:./m.sqlite3", "sqlite:./plain", "memory:name"])
@pytest.mark.parametrize("path", ["/default", "/teams/a b", "/odd.db/ns", "/%"])
def test_a_namespace_of_a_local_store_has_a_uri_that_leads_there(store: str, path: str) -> None:
    place = parse_uri(store)
    found = namespace_in(place, path)
    assert (found.store.backend, found.store.location, found.path) == (place.backend, place.location, path)
    if store.endswith("metadata.db") and path == "/default":
        assert found.text == "distributedlog+sqlite:/data/metadata.db/default"
