"""TLS for both ends of a connection, from files: what an operator has is a certificate, a key, and an authority.

A proxy shows its certificate; with `asks_clients` it takes only callers that show one which its authority has signed. A
client checks that the proxy's certificate names the host that it called, and is signed by the authority, or by one of
the system's if none is given.
"""

from typing import TYPE_CHECKING

from quire.errors import InvalidArgument
from quire.values import dataclass

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of files in PEM format."""

    ca: str | None = None
    """Authorities that others' certificates are checked against. Without it those of the system."""

    certificate: str | None = None
    """Our own, with those between it and the authority behind it. A client needs one if proxies ask for it."""

    key: str | None = None
    """Of the certificate, without a password; None if it is in the same file."""


def server_context(files: TlsFiles, *, asks_clients: bool = False) -> "ssl.SSLContext":
    """For a proxy. Raises `InvalidArgument`, which says which file is wrong."""
    import ssl  # Here: most programs call proxies without TLS, and start sooner so.

    if files.certificate is None:
        raise InvalidArgument("a proxy with TLS needs a certificate", hint="Give --tls-certificate and --tls-key.")
    if asks_clients and files.ca is None:
        raise InvalidArgument(
            "certificates of callers cannot be checked without an authority", hint="Give --tls-ca, too."
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, files)
    if asks_clients:
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(files: TlsFiles) -> "ssl.SSLContext":
    """For whoever calls proxies. Raises `InvalidArgument`, which says which file is wrong."""
    import ssl

    if files.key is not None and files.certificate is None:
        raise InvalidArgument("a key is of no use without its certificate", file=files.key)
    context = ssl.create_default_context() if files.ca is None else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, files)
    return context


def _load(context: "ssl.SSLContext", files: TlsFiles) -> None:
    if files.certificate is not None:
        try:
            # Nobody is there to be asked for a password.
            context.load_cert_chain(files.certificate, files.key, password=lambda: b"")
        except (OSError, ValueError) as error:
            raise _wrong(
                f"certificate {files.certificate!r} with key {files.key or files.certificate!r}", error
            ) from error
    if files.ca is not None:
        try:
            context.load_verify_locations(files.ca)
        except (OSError, ValueError) as error:
            raise _wrong(f"authority {files.ca!r}", error) from error


def _wrong(what: str, error: Exception) -> InvalidArgument:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
    return InvalidArgument(
        f"{what} cannot be used for TLS: {reason}", hint="Give files in PEM format, with no password."
    )
