"""Stream names: what Apache allows, what it does not, and one case where we are stricter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.strategies import many_examples

from quire.codec.stream_metadata.names import is_reserved, stream_name
from quire.errors import InvalidName


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("/orders", "orders"),
        ("a/b/c", "a/b/c"),
        ("/a/b", "a/b"),
        ("...", None),
        ("a/...", "a/..."),
        ("a.b-c_d", "a.b-c_d"),
        ("a\x1fb", "a\x1fb"),
        ("a\x7fb", "a\x7fb"),
        ("a\x9fb", "a\x9fb"),
        ("a\uf8ffb", "a\uf8ffb"),
        ("a\ufff0b", "a\ufff0b"),
        ("a\uffffb", "a\uffffb"),
        ("Größe", "Größe"),
        ("", None),
        ("/", None),
        ("//a", None),
        ("a//b", None),
        ("a/", None),
        (".", None),
        ("a/.", None),
        ("a/..", None),
        ("a/../b", None),
        (".hidden", None),
        ("<default>", None),
        ("a/<default>", None),
        ("a>b", None),
        ("a b", None),
        ("a\x00b", None),
        ("a\x01b", None),
        ("a\x1eb", None),
        ("a\x80b", None),
        ("a\x9eb", None),
        ("a\ud800b", None),
        (f"a{chr(0xDFFF)}b", None),
        ("a\ue000b", None),
        ("a\uf8feb", None),
        ("a\ufff1b", None),
        ("a\ufffeb", None),
        ("a\U00010000b", None),
        ("a\U0010ffffb", None),
    ],
)
def test_a_name_is_normalised_or_refused_as_apache_does(text: str, name: str | None) -> None:
    if name is not None:
        assert stream_name(text) == name
        return
    with pytest.raises(InvalidName, match="cannot name a stream"):
        stream_name(text)


def test_a_slash_does_not_make_a_reserved_name_free() -> None:
    """Apache accepts it; the stream would then be one of the namespace's own nodes and in no listing."""
    with pytest.raises(InvalidName, match="belong to the namespace"):
        stream_name("/.allocation_pool")


@many_examples
@given(st.text(alphabet="ab./<> \x1e\x1f\ue000\U0001f600", max_size=8))
def test_a_name_that_passed_is_its_own_normal_form(text: str) -> None:
    try:
        name = stream_name(text)
    except InvalidName:
        return
    assert stream_name(name) == stream_name("/" + name) == name
    assert not is_reserved(name)
    assert all(part not in ("", ".", "..") for part in name.split("/"))
