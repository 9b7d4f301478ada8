"""Metadata URIs: every form of the specification, and a clear refusal of everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidUri, QuireError
from quire.metadata.uri import parse_uri

ZK = "zk", "/ledgers", ("h1:2181", "h2:2181"), ""

ACCEPTED = {
    "zk://h1:2181;h2:2181/ledgers": (*ZK, None),
    "zk://h1:2181,h2:2181/ledgers": (*ZK, None),
    "zk+null://h1:2181;h2:2181/ledgers": (*ZK, None),
    "zk+flat://h1:2181;h2:2181/ledgers": (*ZK, "flat"),
    "zk+hierarchical://h1:2181;h2:2181/ledgers": (*ZK, "hierarchical"),
    "zk+longhierarchical://h1:2181;h2:2181/ledgers": (*ZK, "longhierarchical"),
    "ZK+Flat://h1:2181;h2:2181/ledgers": (*ZK, "flat"),
    "zk++flat+ignored://h1:2181;h2:2181/ledgers": (*ZK, "flat"),
    "zk://h1:2181;h2:2181/ledgers/": (*ZK, None),  # Apache would build paths with an empty part.
    "zk://h1/a/b%20c": ("zk", "/a/b c", ("h1",), "", None),
    "zk://[::1]:2181/ledgers": ("zk", "/ledgers", ("[::1]:2181",), "", None),
    "etcd://h1:2379/ledgers": ("etcd", "/ledgers", ("h1:2379",), "", None),
    "etcd://h1:2379,h2/scope": ("etcd", "/scope", ("h1:2379", "h2"), "", None),
    "etcd+anything://h1:2379/ledgers": ("etcd", "/ledgers", ("h1:2379",), "", None),
    "etcd://user:secret@h1:2379/ledgers": ("etcd", "/ledgers", ("h1:2379",), "", None),
    "sqlite:metadata.db": ("sqlite", "/ledgers", (), "metadata.db", None),
    "sqlite:./data/metadata.db": ("sqlite", "/ledgers", (), "./data/metadata.db", None),
    "sqlite:/var/lib/m.db": ("sqlite", "/ledgers", (), "/var/lib/m.db", None),
    "sqlite:///var/lib/m.db": ("sqlite", "/ledgers", (), "/var/lib/m.db", None),
    "sqlite://localhost/var/lib/m.db": ("sqlite", "/ledgers", (), "/var/lib/m.db", None),
    "sqlite:m.db?root=/clusters/one": ("sqlite", "/clusters/one", (), "m.db", None),
    "sqlite:my%20data/m.db": ("sqlite", "/ledgers", (), "my data/m.db", None),
    "memory:": ("memory", "/ledgers", (), "", None),
    "memory:shared": ("memory", "/ledgers", (), "shared", None),
    "memory:shared?root=/x": ("memory", "/x", (), "shared", None),
    "consul://h1:8500/ledgers": ("consul", "/ledgers", ("h1:8500",), "", None),  # Another package's driver decides.
}

REFUSED = [
    "",
    "metadata.db",
    "://h1/ledgers",
    "zk",
    "zk:",
    "zk:h1:2181/ledgers",
    "zk://",
    "zk:///ledgers",
    "zk://;,/ledgers",
    "zk://h1:2181",
    "zk://h1:2181/",
    "zk://h1:2181//ledgers",
    "zk://h1:2181/a//b",
    "zk://h1:2181/a/../b",
    "zk://h1:2181/a/./b",
    "zk://h1:2181/%00",
    "zk://h1:0/ledgers",
    "zk://h1:65536/ledgers",
    "zk://h1:port/ledgers",
    "zk://h1:2181:99/ledgers",
    "zk://h1 :2181/ledgers",
    "zk://h1:2181/ledgers?x=1",
    "zk://h1:2181/ledgers#x",
    "zk+ms://h1:2181/ledgers",
    "zk+legacyhierarchical://h1:2181/ledgers",
    "zk+Hierarchical2://h1:2181/ledgers",
    "etcd://",
    "etcd://h1:2379",
    "etcd://h1:1:2/ledgers",
    "etcd://[::1]:2379/ledgers",
    "sqlite:",
    "sqlite://host/m.db",
    "sqlite:m.db?root=relative",
    "sqlite:m.db?root=/a/../b",
    "sqlite:m.db?root=/a&root=/b",
    "sqlite:m.db?rot=/a",
    "sqlite+flat:m.db",
    "sqlite:a%00b",
    "sqlite:%ff.db",
    "zk://h1/%ff",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_every_form_of_the_specification_is_understood(text: str) -> None:
    uri = parse_uri(text)
    assert (uri.backend, uri.root, uri.servers, uri.location, uri.layout) == ACCEPTED[text]
    assert str(uri) == text


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidUri) as caught:
        parse_uri(text)
    assert caught.value.hint


@given(st.text(max_size=60) | st.text(alphabet="zk+flat:/;,[]@?#%0.a", max_size=40))
def test_any_text_is_parsed_or_refused_as_a_uri(text: str) -> None:
    try:
        uri = parse_uri(text)
    except QuireError as error:
        assert isinstance(error, InvalidUri)
    else:
        assert uri.root.startswith("/")
