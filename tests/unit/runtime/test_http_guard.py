"""Which requests an HTTP server takes, by its name and the page that sends them."""

from typing import Any

import pytest

from quire.runtime.http_guard import Hosts


def code(hosts: Hosts, *headers: tuple[str, str], version: str = "1.1") -> str | None:
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": version,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }
    refusal = hosts.refusal(scope)
    return None if refusal is None else refusal.code


LOCAL = Hosts(["127.0.0.1", "127.0.0.1"], ["gateway.example", "2001:db8::7"], machine="box.example")
PUBLIC = Hosts(["0.0.0.0", "0.0.0.0"], ["gateway.example"], machine="box.example")
ANYWHERE = Hosts(machine="box")


@pytest.mark.parametrize(
    ("host", "by_local", "by_public"),
    [
        ("localhost", True, True),
        ("LocalHost:9000", True, True),
        ("localhost.", True, True),
        ("127.0.0.1:8400", True, True),
        ("127.9.9.9", True, True),
        ("[::1]:8400", True, True),
        ("[::ffff:127.0.0.1]", True, True),
        ("gateway.example:443", True, True),
        ("GATEWAY.example.", True, True),
        ("[2001:DB8:0::7]:80", True, True),
        ("10.0.0.5:8000", False, True),
        ("[2001:db8::8]", False, True),
        ("0.0.0.0:8400", False, True),
        ("box.example:8000", False, True),
        ("box", False, True),
        ("evil.example", False, False),
        ("evil.example:8400", False, False),
        ("localhost.evil.example", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("box.evil.example", False, False),
        ("evil@localhost", False, False),
        ("localhost/evil", False, False),
        ("localhost:80:80", False, False),
        ("", False, False),
        ("[]", False, False),
        ("\xe9", False, False),
    ],
)
def test_a_request_is_taken_by_the_names_of_the_server_only(host: str, by_local: bool, by_public: bool) -> None:
    """Goal: a page that has its own name point to us (DNS rebinding) is refused; nobody else is.

    Method: one server on loopback and one that listens everywhere, both told of one name.
    """
    assert code(LOCAL, ("host", host)) == (None if by_local else "HOST_NOT_ALLOWED")
    assert code(PUBLIC, ("host", host)) == (None if by_public else "HOST_NOT_ALLOWED")
    assert code(ANYWHERE, ("host", host)) == (None if by_public and "example" not in host else "HOST_NOT_ALLOWED")


def test_where_a_server_listens_is_one_of_its_names() -> None:
    bound = Hosts(["proxy1", "10.0.0.5"], machine="box")
    assert code(bound, ("host", "proxy1:8080")) is None
    assert code(bound, ("host", "proxy2:8080")) == "HOST_NOT_ALLOWED"
    assert code(Hosts(["debian", "127.0.1.1"], machine="debian"), ("host", "debian")) is None


@pytest.mark.parametrize(
    ("origin", "host", "is_taken"),
    [
        ("http://localhost:8400", "localhost:8400", True),
        ("http://LOCALHOST:8400", "localhost:8400", True),
        ("https://gateway.example", "gateway.example", True),
        ("http://[::1]:8400", "[::1]:8400", True),
        ("http://localhost:3000", "localhost:8400", False),
        ("http://127.0.0.1:8400", "localhost:8400", False),
        ("http://localhost", "localhost:8400", False),
        ("https://evil.example", "localhost:8400", False),
        ("null", "localhost:8400", False),
        ("", "localhost:8400", False),
        ("file://", "localhost:8400", False),
        ("ftp://localhost:8400", "localhost:8400", False),
        ("http://localhost:8400 https://evil.example", "localhost:8400", False),
    ],
)
def test_pages_are_taken_from_the_server_itself_only(origin: str, host: str, is_taken: bool) -> None:
    assert code(LOCAL, ("host", host), ("origin", origin)) == (None if is_taken else "ORIGIN_NOT_ALLOWED")


def test_of_two_origins_or_hosts_none_is_believed() -> None:
    host, origin = ("host", "localhost"), ("origin", "http://localhost")
    assert code(LOCAL, host, origin) is None
    assert code(LOCAL, host, origin, ("origin", "http://evil.example")) == "ORIGIN_NOT_ALLOWED"
    assert code(LOCAL, host, host) == "HOST_NOT_ALLOWED"


def test_only_what_is_no_browser_may_leave_the_host_away() -> None:
    assert code(LOCAL, version="1.0") is None
    assert code(LOCAL, ("origin", "http://localhost"), version="1.0") == "ORIGIN_NOT_ALLOWED"


def test_the_length_of_a_body_is_told_once() -> None:
    host, length, chunked = ("host", "localhost"), ("content-length", "4"), ("transfer-encoding", "chunked")
    assert code(LOCAL, host, length) is None
    assert code(LOCAL, host, chunked) is None
    assert code(LOCAL, host, length, chunked) == "AMBIGUOUS_LENGTH"
    assert code(LOCAL, host, chunked, version="1.0") == "AMBIGUOUS_LENGTH"
