"""Where a namespace is: the URI that streams are reached by.

    distributedlog://zk1:2181;zk2:2181/ns              metadata in ZooKeeper, beside Apache's clients
    distributedlog-bk://zk1:2181;zk2:2181/ns           the same, as Apache's clients also write it
    distributedlog+etcd://host:2379/ns                 metadata in etcd
    distributedlog+sqlite:./data/metadata.db/ns        metadata in a file of this machine
    distributedlog+sqlite:./data/metadata?namespace=/ns
    distributedlog+memory:name/ns                      metadata in this process

Servers are separated by `;` or `,`. The namespace is the path of a node, of any depth: `/ns`, `/messaging/team-a`.

The file of `+sqlite` ends with the last part of the path that ends in `.db`, `.sqlite` or `.sqlite3`; what follows is
the namespace. A file of another name, or a namespace with such a part, takes `?namespace=`: then the whole path is the
file. What a path means so never depends on which files there are.
"""

import re
from typing import Final
from urllib.parse import parse_qs, quote, unquote

from quire.errors import InvalidPath, InvalidUri
from quire.metadata import MetadataUri, parse_uri
from quire.metadata.paths import ROOT, check_path
from quire.values import dataclass

LOCAL: Final = "local"  # What the binding of a namespace in a local store names as servers: that very store.

_NETWORK: Final = {"distributedlog": "zk", "distributedlog-bk": "zk", "distributedlog+etcd": "etcd"}
_SQLITE: Final = "distributedlog+sqlite"
_MEMORY: Final = "distributedlog+memory"
_FILE_ENDS: Final = (".db", ".sqlite", ".sqlite3")
_QUERY: Final = "namespace"
_HINT: Final = (
    "Write distributedlog://zk1:2181;zk2:2181/ns, distributedlog+etcd://host:2379/ns, "
    "distributedlog+sqlite:./data/metadata.db/ns or distributedlog+memory:name/ns."
)


@dataclass(frozen=True, slots=True)
class StreamUri:
    """A parsed namespace URI.

    `store` is the metadata store, with the namespace's path as its root. `authority` names the store in bindings.
    """

    text: str
    store: MetadataUri
    path: str
    authority: str

    @property
    def is_local(self) -> bool:
        """Whether the store is on this machine only: a namespace there has its ledgers in the same store."""
        return self.authority == LOCAL

    def __str__(self) -> str:
        return self.text


def parse_stream_uri(text: str) -> StreamUri:
    """Parse a namespace URI. Raises `InvalidUri`, saying what is wrong and which forms there are."""
    scheme, _, rest = text.partition(":")
    scheme = scheme.lower()
    if scheme in _NETWORK:
        return _parse_network(text, _NETWORK[scheme], rest)
    if scheme in (_SQLITE, _MEMORY):
        return _parse_local(text, scheme, rest)
    raise _invalid(text, "no namespace is reached by this scheme")


def namespace_in(store: MetadataUri, path: str) -> StreamUri:
    """The URI of the namespace at `path` in a store of this machine, as short as it can be. Raises `InvalidUri`."""
    place = f"distributedlog+{store.backend}:{quote(store.location)}"
    try:
        short = parse_stream_uri(f"{place}{quote(path)}")
        if (short.store.location, short.path) == (store.location, path):
            return short
    except InvalidUri:
        pass  # The path could be taken for a part of the file's, or the file has another ending.
    return parse_stream_uri(f"{place}?{_QUERY}={quote(path)}")


def _parse_network(text: str, backend: str, rest: str) -> StreamUri:
    try:
        store = parse_uri(f"{backend}:{rest}")
    except InvalidUri as error:
        raise _invalid(text, str(error)) from error
    return StreamUri(text, store, store.root, ",".join(store.servers))


def _parse_local(text: str, scheme: str, rest: str) -> StreamUri:
    location, question, query = rest.partition("?")
    location = _without_authority(text, location)
    if question:
        named = parse_qs(query, keep_blank_values=True)
        if set(named) != {_QUERY} or len(named[_QUERY]) != 1:
            raise _invalid(text, f"it may only have one parameter, {_QUERY}=/path")
        place, namespace = _decoded(text, location), named[_QUERY][0]
    elif scheme == _SQLITE:
        place, namespace = _split_at_file(text, location)
    else:
        name, slash, path = location.partition("/")
        place, namespace = _decoded(text, name), _decoded(text, slash + path)
    if not place:
        raise _invalid(text, "it names no store" if scheme == _MEMORY else "it names no file")
    path = _namespace(text, namespace)
    backend = scheme.partition("+")[2]
    store = MetadataUri(f"{backend}:{quote(place)}?root={quote(path)}", backend, path, location=place)
    return StreamUri(text, store, path, LOCAL)


def _without_authority(text: str, location: str) -> str:
    """`///path` and `//localhost/path` are an absolute path, as in a file's URI."""
    match = re.fullmatch("//([^/]*)(.*)", location, re.DOTALL)
    if match is None:
        return location
    if match[1].lower() not in ("", "localhost"):
        raise _invalid(text, f"it names the host {match[1]!r}, but the store is on this machine")
    return match[2]


def _split_at_file(text: str, location: str) -> tuple[str, str]:
    parts = location.split("/")
    ends = [end for end, part in enumerate(parts, start=1) if _decoded(text, part).lower().endswith(_FILE_ENDS)]
    if not ends:
        raise _invalid(text, f"no part of its path ends in {', '.join(_FILE_ENDS)}, so its file is not known")
    file, namespace = parts[: ends[-1]], parts[ends[-1] :]
    return _decoded(text, "/".join(file)), _decoded(text, "".join(f"/{part}" for part in namespace))


def _namespace(text: str, path: str) -> str:
    normal = path.rstrip("/")
    if not normal:
        raise _invalid(text, "it names no namespace behind the store")
    try:
        return check_path(normal if normal.startswith(ROOT) else f"/{normal}")
    except InvalidPath as error:
        raise _invalid(text, str(error)) from error


def _decoded(text: str, part: str) -> str:
    try:
        decoded = unquote(part, errors="strict")
    except UnicodeDecodeError as error:
        raise _invalid(text, "its %-escapes are not UTF-8") from error
    if "\x00" in decoded:
        raise _invalid(text, "it contains a zero byte")
    return decoded


def _invalid(text: str, problem: str) -> InvalidUri:
    return InvalidUri(f"{text!r} is no URI of a namespace: {problem}", hint=_HINT, uri=text)
