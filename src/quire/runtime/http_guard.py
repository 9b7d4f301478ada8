"""Which requests an HTTP server takes: those that were meant for it, and not those of a stranger's web page.

A browser lets any page send requests to any address, loopback included. Two headers, which pages cannot forge, give
such a page away. `Origin` names the page that sends. `Host` has the name by which the browser found the server: a page
whose own name was made to point to this machine (DNS rebinding) counts as ours for the browser, but its name is there.

Invariants:
  KnownNamesOnly   a request is taken only if its `Host` is a loopback name, or a name or address that the server was
                   told of. A server that listens beyond loopback also takes the name of its machine, and all addresses
                   written as numbers: no page can make one of these its own name.
  OwnPagesOnly     a request with an `Origin` is taken only if that is the name and port which its `Host` has.
  OneLength        a request that tells the length of its body in two ways is refused: servers in front of this one
                   might believe the other one, and take a part of the body for a request.

A request without a `Host` (HTTP/1.0) is no browser's, and is taken.
"""

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, Final, NamedTuple

from quire.codec.damage import shown
from quire.telemetry.events import Seldom, logger

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

_AUTHORITY: Final = re.compile(r"(?:\[([^\[\]]+)\]|([^\[\]:@/?#\s]+))(?::\d*)?")
_LOOPBACK: Final = "localhost"
_log = logger("http")
_HINT: Final = "Nothing was done. Use an address of this server, or tell it of the name with --http-host."


class Refusal(NamedTuple):
    """Why a request is not taken."""

    status: int
    code: str
    message: str
    hint: str


class Hosts:
    """The names and addresses under which one server is asked."""

    def __init__(self, bound: Iterable[str] = (), names: Iterable[str] = (), *, machine: str | None = None) -> None:
        """`bound` is where it listens, as it was said and as it is; nothing if that is not known, and then it may be
        anywhere. `names` are others that it was told of. `machine` is the name of this one."""
        bound = [_plain(each) for each in bound]
        self._is_beyond_loopback = not bound or not any(map(_is_loopback, bound))
        self._names = {*bound, *map(_plain, names), _LOOPBACK}
        if self._is_beyond_loopback:
            machine = _plain(socket.gethostname() if machine is None else machine)
            self._names |= {machine, machine.partition(".")[0]}

    def refusal(self, scope: Scope) -> Refusal | None:
        """Why not to take the request, if so."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        hosts, origins, lengths, encodings = (
            [value.decode("latin-1").strip() for name, value in headers if name == wanted]
            for wanted in (b"host", b"origin", b"content-length", b"transfer-encoding")
        )
        if encodings and (lengths or scope["http_version"] == "1.0"):
            problem = "the request tells the length of its body in two ways, of which one may be wrong"
            return Refusal(400, "AMBIGUOUS_LENGTH", problem, "Send Content-Length or Transfer-Encoding, not both.")
        if not all(map(self._is_ours, hosts)) or len(hosts) > 1:
            problem = f"the request is for {shown(', '.join(hosts))}, which is no name of this server"
            return Refusal(403, "HOST_NOT_ALLOWED", problem, _HINT)
        if not all(self._is_own_page(origin, hosts) for origin in origins):
            problem = f"the request comes from a page of {shown(', '.join(origins))}, and not of this server"
            return Refusal(403, "ORIGIN_NOT_ALLOWED", problem, "Nothing was done. Pages of others may not ask here.")
        return None

    def _is_ours(self, authority: str) -> bool:
        match = _AUTHORITY.fullmatch(authority)
        if match is None:
            return False
        host = _plain(match[1] or match[2])
        address = _address(host)
        return host in self._names or _is_loopback(host) or (address is not None and self._is_beyond_loopback)

    @staticmethod
    def _is_own_page(origin: str, hosts: list[str]) -> bool:
        """Whatever the scheme: something in front of the server may speak TLS with browsers."""
        scheme, _, authority = origin.lower().partition("://")
        return scheme in ("http", "https") and [authority] == [host.lower() for host in hosts]


def _plain(host: str) -> str:
    """One form for each name and address."""
    host = host.strip("[]").removesuffix(".").lower()
    address = _address(host)
    return host if address is None else str(address)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(host)
    except ValueError:
        return None
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_loopback(host: str) -> bool:
    address = _address(host)
    return host == _LOOPBACK if address is None else address.is_loopback


class Guarded:
    """An ASGI application that gets only requests which are meant for it. The others get what `refuse` makes."""

    def __init__(self, application: Application, hosts: Hosts, refuse: Callable[[Refusal], Application]) -> None:
        self._application, self._hosts, self._refuse = application, hosts, refuse
        self._tell = Seldom(_log.warning, "http.refused")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._hosts.refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._application(scope, receive, send)
            return
        now_s = asyncio.get_running_loop().time()
        self._tell(now_s, code=refusal.code, client=scope.get("client"), problem=refusal.message)
        await self._refuse(refusal)(scope, receive, send)
