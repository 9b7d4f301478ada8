"""Metadata paths: the rules, and the small functions that take paths apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import InvalidPath
from quire.metadata.paths import ancestors_of, check_path, join, name_of, parent_of

PARTS = st.text(alphabet="ab.-:0", min_size=1, max_size=4).filter(lambda part: part not in (".", ".."))


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/a.b/..c/d..", "/bk1:3181", "/ü/日本"])
def test_good_paths_pass(path: str) -> None:
    assert check_path(path) == path


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("", "start"),
        ("a", "start"),
        ("/a/", "empty"),
        ("//", "empty"),
        ("/a//b", "empty"),
        ("/.", "not a name"),
        ("/a/../b", "not a name"),
        ("/\x00", "character"),
        ("/a\x1f", "character"),
        ("/\x85", "character"),
        ("/\ud800", "character"),
        ("/\ufff9", "character"),
    ],
)
def test_bad_paths_say_what_is_wrong(path: str, reason: str) -> None:
    with pytest.raises(InvalidPath, match=reason) as caught:
        check_path(path)
    assert caught.value.hint
    assert caught.value.facts["path"] == path


@given(st.lists(PARTS, min_size=1, max_size=5))
def test_a_path_comes_apart_as_it_was_put_together(parts: list[str]) -> None:
    path = join("/", *parts)
    assert check_path(path) == path
    assert name_of(path) == parts[-1]
    assert parent_of(path) == ("/" + "/".join(parts[:-1]))
    assert [*ancestors_of(path), path] == ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]


def test_the_root_is_its_own_parent() -> None:
    assert parent_of("/") == "/"
    assert ancestors_of("/a") == []
