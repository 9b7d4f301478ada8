"""Which cold storage a URI stands for."""

import os
import sys

import pytest

from quire.cold import ColdStores
from quire.cold.stores import normal_root
from quire.errors import InvalidUri, MissingExtra, QuireError, UnknownScheme


@pytest.mark.parametrize(
    ("uri", "normal"),
    [
        ("file:/mnt/a", "file:/mnt/a"),
        ("file:///mnt/a/", "file:/mnt/a"),
        ("file://localhost/mnt/a", "file:/mnt/a"),
        ("file:a", f"file:{os.getcwd()}/a"),
        ("memory:x", "memory:x"),
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a?endpoint=http://h:1", "s3://bucket/a?endpoint=http://h:1"),
        ("hdfs://nn:8020/a?http=9870", "hdfs://nn:8020/a?http=9870"),
    ],
)
def test_a_root_is_written_in_one_way(uri: str, normal: str) -> None:
    assert normal_root(uri) == normal == normal_root(normal)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("", UnknownScheme),
        ("/mnt/a", UnknownScheme),
        ("gs://bucket", UnknownScheme),
        ("file:", InvalidUri),
        ("file://host/a", InvalidUri),
        ("file:/a?b=c", InvalidUri),
        ("memory:", InvalidUri),
        ("s3:", InvalidUri),
        ("s3:///a", InvalidUri),
        ("s3://key:secret@bucket/a", InvalidUri),
        ("s3://key@bucket/a", InvalidUri),
        ("hdfs:///a", InvalidUri),
        ("hdfs://user:password@nn/a", InvalidUri),
        ("hdfs://nn:port/a", InvalidUri),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(uri: str, kind: type[QuireError]) -> None:
    with pytest.raises(kind) as error:
        ColdStores().at(uri)
    assert "s3://bucket" in error.value.hint


@pytest.mark.parametrize("uri", ["s3://bucket/a?colour=blue", "hdfs://nn/a?colour=blue", "hdfs://nn/a?http=many"])
def test_options_that_are_not_known_are_refused(uri: str) -> None:
    with pytest.raises(InvalidUri, match="not known"):
        ColdStores().at(uri)


def test_a_root_is_opened_once() -> None:
    stores = ColdStores()
    assert stores.at("memory:a") is stores.at("memory:a")
    assert stores.at("memory:a") is not stores.at("memory:b")


@pytest.mark.parametrize(
    ("uri", "library"), [("s3://bucket/a", "obstore"), ("hdfs://nn/a", "requests"), ("webhdfs://nn/a", "requests")]
)
def test_a_library_that_is_not_installed_is_named(uri: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=library) as error:
        ColdStores().at(uri)
    assert "quirelog[cold]" in error.value.hint
