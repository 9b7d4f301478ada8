"""Certificates for tests of TLS, from an authority that exists for one run."""

import ssl

import trustme


class Certificates:
    """A certificate for localhost from an authority of its own, made for this run."""

    def __init__(self) -> None:
        self._authority = trustme.CA()
        self._certificate = self._authority.issue_cert("localhost")

    def server(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._certificate.configure_cert(context)
        return context

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        return context

    def root(self) -> bytes:
        """The authority's own certificate, for libraries with another idea of trust."""
        return self._authority.cert_pem.bytes()
