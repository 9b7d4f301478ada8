"""Paths of metadata nodes: the rules every driver shares, so that one tree fits on all of them.

The rules are ZooKeeper's, the strictest of the backends: absolute, no empty, `.` or `..` parts, no trailing slash, no
control characters and none of the code points that ZooKeeper refuses.
"""

import re
from typing import Final

from quire.errors import InvalidPath

ROOT: Final = "/"

# So wide a set takes most of a millisecond to compile: only who has unusual characters waits for that.
_FORBIDDEN: Final = "[\x00-\x1f\x7f-\x9f\ud800-\uf8ff\ufff0-\uffff]"


def check_path(path: str) -> str:
    """Return `path` if it names a node (the root included), or raise `InvalidPath`."""
    problem = _problem(path)
    if problem:
        raise InvalidPath(f"{path!r} is not a metadata path: {problem}", path=path)
    return path


def _problem(path: str) -> str | None:
    if path == ROOT:
        return None
    if not path.startswith("/"):
        return "it does not start with '/'"
    if not (path.isascii() and path.isprintable()) and re.search(_FORBIDDEN, path):
        return "it contains a character that metadata stores refuse"
    for part in path[1:].split("/"):
        if not part:
            return "one of its parts is empty"
        if part in (".", ".."):
            return f"{part!r} is not a name"
    return None


def join(parent: str, *names: str) -> str:
    """`parent` with `names` below it. The result is checked when it is used."""
    return "/".join([parent.rstrip("/"), *names])


def parent_of(path: str) -> str:
    """The path one level up; the root is its own parent."""
    return path.rpartition("/")[0] or ROOT


def name_of(path: str) -> str:
    """The last part of `path`."""
    return path.rpartition("/")[2]


def ancestors_of(path: str) -> list[str]:
    """Every path above `path` but the root, from the top down."""
    parts = path[1:].split("/")[:-1]
    return ["/" + "/".join(parts[: depth + 1]) for depth in range(len(parts))]
