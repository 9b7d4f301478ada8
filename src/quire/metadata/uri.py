"""Metadata service URIs: where a cluster's metadata is, and how its ledgers are laid out (BP-29).

    zk[+LAYOUT]://host:port;host:port/root      LAYOUT: null, flat, hierarchical, longhierarchical
    etcd://host:port;host:port/scope
    sqlite:path/to/file.db[?root=/ledgers]
    memory:[name][?root=/ledgers]

The scheme up to the first `+` picks the driver. Several servers are separated by `;` or `,`; we print `;`, because
Java's configuration files cut a value at a comma.
"""

import re
from typing import Final
from urllib.parse import parse_qs, unquote

from quire.errors import InvalidPath, InvalidUri
from quire.metadata.paths import ROOT, check_path
from quire.values import dataclass

DEFAULT_ROOT: Final = "/ledgers"
ZK_LAYOUTS: Final = ("flat", "hierarchical", "longhierarchical")

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s:\[\]/?#@]+)(:(?P<port>[0-9]{1,5}))?")


@dataclass(frozen=True, slots=True)
class MetadataUri:
    """A parsed metadata URI.

    `layout` is the ledger layout that the URI insists on, or None to take what is stored. `location` is the file of
    `sqlite:` and the name of `memory:`; `servers` are those of network stores, as `host` or `host:port`.
    """

    text: str
    backend: str
    root: str
    servers: tuple[str, ...] = ()
    location: str = ""
    layout: str | None = None

    def __str__(self) -> str:
        return self.text


def parse_uri(text: str) -> MetadataUri:
    """Parse a metadata URI. Raises `InvalidUri` saying which part is wrong."""
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        raise InvalidUri(f"{text!r} has no scheme", uri=text)
    backend, *options = [token for token in scheme.lower().split("+") if token] or [""]
    if rest.startswith("//") and backend not in ("sqlite", "memory"):
        return _parse_network(text, backend, options, rest[2:])
    if backend in ("zk", "etcd"):
        raise InvalidUri(f"{text!r} names no servers: '//' is missing after '{scheme}:'", uri=text)
    return _parse_local(text, backend, options, rest)


def _parse_network(text: str, backend: str, options: list[str], rest: str) -> MetadataUri:
    if "?" in rest or "#" in rest:
        raise InvalidUri(f"{text!r} has a query or a fragment, which {backend} URIs do not take", uri=text)
    authority, slash, path = rest.partition("/")
    if backend == "etcd":
        authority = authority.rpartition("@")[2]  # Apache's driver ignores user information; so do we.
    servers = tuple(part for part in re.split("[;,]", authority) if part)
    if not servers:
        raise InvalidUri(f"{text!r} names no servers", uri=text)
    for server in servers:
        _check_server(text, backend, server)
    root = _root(text, slash + _decoded(text, path))
    if root == ROOT:
        raise InvalidUri(f"{text!r} has no root path after the servers", uri=text)
    return MetadataUri(text, backend, root, servers=servers, layout=_layout(text, backend, options))


def _check_server(text: str, backend: str, server: str) -> None:
    match = _HOST_PORT.fullmatch(server)
    if not match or (backend == "etcd" and match["host"].startswith("[")):
        raise InvalidUri(f"{server!r} in {text!r} is not host:port", uri=text)
    if match["port"] is not None and not 0 < int(match["port"]) < 65536:
        raise InvalidUri(f"{server!r} in {text!r} has an impossible port", uri=text)


def _layout(text: str, backend: str, options: list[str]) -> str | None:
    if backend != "zk" or not options or options[0] == "null":
        return None
    if options[0] not in ZK_LAYOUTS:
        raise InvalidUri(
            f"{options[0]!r} in {text!r} is not a ledger layout",
            hint="Write zk+hierarchical (the default), zk+longhierarchical, zk+flat, or zk to take what is stored.",
            uri=text,
        )
    return options[0]


def _parse_local(text: str, backend: str, options: list[str], rest: str) -> MetadataUri:
    if options:
        raise InvalidUri(f"{backend} URIs take no '+{options[0]}'", uri=text)
    location, _, query = rest.partition("?")
    if location.startswith("//"):
        authority, _, path = location[2:].partition("/")
        if authority not in ("", "localhost"):
            raise InvalidUri(f"{text!r} names the host {authority!r}, but {backend} is local", uri=text)
        location = "/" + path
    parameters = parse_qs(query, keep_blank_values=True)
    unknown = set(parameters) - {"root"}
    if unknown or any(len(values) > 1 for values in parameters.values()):
        raise InvalidUri(f"{text!r} may only have one parameter, root=/path", uri=text)
    if backend == "sqlite" and not location:
        raise InvalidUri(f"{text!r} names no file", uri=text)
    root = _root(text, parameters.get("root", [DEFAULT_ROOT])[0])
    return MetadataUri(text, backend, root, location=_decoded(text, location))


def _decoded(text: str, part: str) -> str:
    try:
        decoded = unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidUri(f"the %-escapes in {text!r} are not UTF-8", uri=text) from error
    if "\x00" in decoded:
        raise InvalidUri(f"{text!r} contains a zero byte", uri=text)
    return decoded


def _root(text: str, path: str) -> str:
    normal = path.rstrip("/") or ROOT  # Apache would build paths with an empty part from a trailing slash.
    try:
        return check_path(normal)
    except InvalidPath as error:
        raise InvalidUri(f"the root path in {text!r} is wrong: {error}", uri=text) from error
