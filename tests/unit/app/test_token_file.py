"""The token that a process shows, from a file."""

from pathlib import Path

import pytest

from quire.app.token_file import read_token
from quire.errors import InvalidArgument


def test_a_file_has_one_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("quire-1.a.b\n")
    assert read_token(str(file)) == "quire-1.a.b"


@pytest.mark.parametrize("content", [b"", b"\n", b"a b", b"a\nb", b"a\x00", "é".encode(), b"\xff"])
def test_what_is_no_token_is_told_without_showing_it(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(InvalidArgument) as refused:
        read_token(str(file))
    assert "a b" not in str(refused.value)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_token(str(tmp_path / "nothing"))
