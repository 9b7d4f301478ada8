"""Certificates for tests of TLS, from an authority that exists for one run."""

import ssl
from pathlib import Path

import trustme

from quire.rpc.serving.tls import TlsFiles


class Certificates:
    """A certificate for localhost from an authority of its own, made for this run."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self._certificate = self._authority.issue_cert("localhost", "127.0.0.1")

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context

    def files(self, folder: Path) -> TlsFiles:
        """The authority, the certificate and its key, as an operator has them."""
        paths = TlsFiles(*(str(folder / name) for name in ("ca.pem", "certificate.pem", "key.pem")))
        self._authority.cert_pem.write_to_path(str(paths.ca))
        self._certificate.private_key_pem.write_to_path(str(paths.key))
        Path(str(paths.certificate)).write_bytes(b"".join(each.bytes() for each in self._certificate.cert_chain_pems))
        return paths

    def root(self) -> bytes:
        """The authority's own certificate, for libraries with another idea of trust."""
        return self._authority.cert_pem.bytes()
