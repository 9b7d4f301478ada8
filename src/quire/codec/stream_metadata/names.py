"""What a stream may be called: by the rules of Apache DistributedLog, and, when we create it, by stricter ones.

A name is one or more parts between slashes, and becomes a path below the namespace. Apache checks it in units of
UTF-16, so a character outside the basic plane counts as its two surrogates, and the lower one is never allowed.

Apache lets names pass that a person cannot tell from others, such as `a\\u202eb`, or that fill a screen. Streams with
such names are read, written and deleted like others; we do not create any.

Invariant: a name that passed is its own normal form, and never meets a node that the namespace keeps for itself.
"""

import re
from typing import Final

from quire.codec.damage import shown
from quire.errors import InvalidName

_RESERVED: Final = (".", "<")  # First characters of the namespace's own nodes: `.allocation_pool`, `<default>`.

# The ends of the ranges look off by one. They are Apache's, and names that it made must stay readable. U+D800 alone
# would pass there; it is no text that could be stored, so the range begins with it here.
_FORBIDDEN: Final = "[\x00-\x1e <>\x80-\x9e\ud800-\uf8fe\ufff1-\ufffe\U00010000-\U0010ffff]"
NEW_BYTES_MAX: Final = 512  # As UTF-8.
_PLAIN = re.compile("[!-;=?-~]*")  # So that only unusual names wait until the wide set above is compiled.


def is_reserved(name: str) -> bool:
    """Whether a child of a namespace is a node of its own kind and not a stream, or the way to one."""
    return name.startswith(_RESERVED)


def stream_name(text: str) -> str:
    """The normal form of a stream's name: without the one slash that it may begin with. Raises `InvalidName`."""
    name = text.removeprefix("/")
    problem = _problem(name)
    if problem:
        raise InvalidName(
            f"{shown(text)} cannot name a stream: {problem}",
            hint="Use parts between single slashes, without spaces, '<', '>' or control characters.",
            stream=text,
        )
    return name


def check_new_name(name: str, what: str) -> None:
    """Raise `InvalidName` for what we do not call a new stream, or a new subscription, although others may have."""
    if not name.isprintable():
        unseen = next(each for each in name if not each.isprintable())
        problem = f"{unseen!a} in it cannot be seen"
    elif (size := len(name.encode())) > NEW_BYTES_MAX:
        problem = f"it has {size} bytes as UTF-8, and {NEW_BYTES_MAX} are the most"
    else:
        return
    raise InvalidName(
        f"{shown(name)} cannot name a new {what}: {problem}",
        hint="Nothing was created. Use a name of visible characters that is not that long.",
    )


def _problem(name: str) -> str | None:
    if not name:
        return "it is empty"
    if is_reserved(name):  # Apache looks for this before it drops a slash, and so would let `/.allocation_pool` pass.
        return "names that begin with '.' or '<' belong to the namespace"
    forbidden = None if _PLAIN.fullmatch(name) else re.search(_FORBIDDEN, name)
    if forbidden:
        return f"{forbidden[0]!a} is not allowed in it"
    for part in name.split("/"):
        if part in ("", ".", ".."):
            return f"{part!r} is one of its parts"
    return None
