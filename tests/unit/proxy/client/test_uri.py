"""Which proxies a URI names, and whether they are called over TLS."""

import asyncio

import pytest

from quire.errors import InvalidArgument, InvalidUri
from quire.proxy.client.client import open_proxy_client
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.client.uri import parse_proxy_uri
from quire.rpc.serving.tls import TlsFiles


@pytest.mark.parametrize(("text", "is_tls"), [("quire://a:1,b/ns", False), ("quires://a:1,b/ns", True)])
def test_the_scheme_says_whether_connections_are_encrypted(text: str, is_tls: bool) -> None:
    parsed = parse_proxy_uri(text)
    assert (parsed.seeds, parsed.namespace, parsed.is_tls) == (("a:1", "b:7400"), "ns", is_tls)


@pytest.mark.parametrize("text", ["quirex://a/ns", "quires:a/ns", "quires:///ns", "quires://a"])
def test_what_names_no_proxies_is_refused(text: str) -> None:
    with pytest.raises(InvalidUri):
        parse_proxy_uri(text)


def test_files_for_tls_are_refused_where_nothing_would_be_encrypted() -> None:
    async def check() -> None:
        settings = ProxyClientSettings(tls=TlsFiles(ca="ca.pem"))
        with pytest.raises(InvalidArgument, match="without TLS"):
            async with open_proxy_client("quire://a:1/ns", client_settings=settings):
                pass

    asyncio.run(check())
