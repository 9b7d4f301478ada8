"""Where proxies are: `quire://host:port[,host:port…]/namespace`; `quires://` if they are to be called over TLS.

The hosts are only where a client begins to ask: each proxy knows all others. The namespace is the last part of the path
of the namespace that they serve: `/messaging/team-a` is served as `team-a`.
"""

import re
from typing import Final

from quire.errors import InvalidUri
from quire.values import dataclass

SCHEME: Final = "quire"
TLS_SCHEME: Final = "quires"
SCHEMES: Final = (SCHEME, TLS_SCHEME)
DEFAULT_PORT: Final = 7400

_HINT: Final = "Write quire://host:port/namespace, or several hosts: quire://host1:port,host2:port/namespace."
_HOST: Final = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>\d{1,5}))?")
_NAMESPACE: Final = re.compile(r"[^/?#\s]+")


@dataclass(frozen=True, slots=True)
class ProxyUri:
    """A parsed URI of proxies."""

    text: str
    seeds: tuple[str, ...]
    """Proxies to begin with, as `host:port`."""
    namespace: str
    is_tls: bool = False

    def __str__(self) -> str:
        return self.text


def parse_proxy_uri(text: str) -> ProxyUri:
    """Raises `InvalidUri`, saying what is wrong and how it should look."""
    scheme, _, rest = text.partition(":")
    if scheme.lower() not in SCHEMES or not rest.startswith("//"):
        raise _invalid(text, "is no URI of proxies")
    authority, _, namespace = rest.removeprefix("//").partition("/")
    if not authority:
        raise _invalid(text, "names no proxy")
    seeds = tuple(dict.fromkeys(_seed(text, host) for host in authority.split(",")))
    namespace = namespace.removesuffix("/")
    if not namespace:
        raise _invalid(text, "names no namespace")
    if not _NAMESPACE.fullmatch(namespace):
        raise _invalid(text, f"names {namespace!r}, which is no namespace: proxies know theirs by one word")
    return ProxyUri(text, seeds, namespace, is_tls=scheme.lower() == TLS_SCHEME)


def _seed(text: str, host: str) -> str:
    match = _HOST.fullmatch(host)
    if match is None:
        raise _invalid(text, f"names the proxy {host!r}, which is no host and port")
    port = int(match["port"] or DEFAULT_PORT)
    if not 0 < port < 1 << 16:
        raise _invalid(text, f"names the port {port}")
    return f"{match['host']}:{port}"


def _invalid(text: str, problem: str) -> InvalidUri:
    return InvalidUri(f"{text!r} {problem}", hint=_HINT, uri=text)
