"""What commands show to proxies, and whom they trust: from the environment, so that no secret is on a command line.

QUIRE_TOKEN_FILE       a file with the token for proxies that ask for one
QUIRE_TOKEN            the token itself, if there is no such file
QUIRE_TLS_CA           behind quires:// the authorities to trust, if not the system's
QUIRE_TLS_CERTIFICATE  behind quires:// what to show to proxies that ask for certificates
QUIRE_TLS_KEY          its key
"""

import os

from quire.app.token_file import read_token
from quire.proxy.client.settings import ProxyClientSettings
from quire.proxy.client.uri import parse_proxy_uri
from quire.rpc.serving.tls import TlsFiles


def token() -> str | None:
    """Raises `InvalidArgument` if the file cannot be read."""
    file = os.environ.get("QUIRE_TOKEN_FILE")
    return read_token(file) if file else os.environ.get("QUIRE_TOKEN")


def tls_files() -> TlsFiles:
    ca, certificate, key = (os.environ.get(f"QUIRE_TLS_{name}") for name in ("CA", "CERTIFICATE", "KEY"))
    return TlsFiles(ca=ca or None, certificate=certificate or None, key=key or None)


def client_settings(uri: str) -> ProxyClientSettings:
    """For the proxies at `uri`. Raises `InvalidUri`, and `InvalidArgument` if there is a token that cannot be read."""
    return ProxyClientSettings(token=token(), tls=tls_files() if parse_proxy_uri(uri).is_tls else None)
