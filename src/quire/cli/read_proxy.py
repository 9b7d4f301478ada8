"""`quire read-proxy`: run a read proxy: many programs read streams through it."""

from typing import Annotated

import typer

from quire.cli.operating import HttpHost
from quire.cli.proxy_process import (
    Admin,
    Advertise,
    Gateway,
    Json,
    Region,
    Session,
    Set,
    Timeout,
    TlsCa,
    TlsCertificate,
    TlsClients,
    TlsKey,
    TlsNames,
    TokenFile,
    Tokens,
    Uri,
    run_proxy_command,
    show_settings,
)

app = typer.Typer(help="Run a read proxy: many programs read streams through it.", no_args_is_help=True)


@app.command("run", epilog="Example:  quire read-proxy run --uri distributedlog://zk1:2181/ns")
def run_command(
    uri: Uri,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes any free one.")] = "127.0.0.1:7500",
    advertise: Advertise = None,
    region: Region = "",
    admin: Admin = "127.0.0.1:0",
    gateway: Gateway = "none",
    http_host: HttpHost = None,
    set: Set = None,
    timeout: Timeout = 10.0,
    session: Session = 2.0,
    tokens: Tokens = None,
    token_file: TokenFile = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    tls_clients: TlsClients = False,
) -> None:
    """Run a read proxy in the foreground. Ctrl-C sends its readers to others first; a second one stops at once."""
    tls = TlsNames(tls_certificate, tls_key, tls_ca, tls_clients)
    run_proxy_command(
        "read",
        uri,
        listen,
        advertise,
        region,
        admin,
        gateway,
        http_host,
        set,
        timeout,
        session,
        tokens,
        token_file,
        tls=tls,
    )


@app.command(epilog="Example:  quire read-proxy settings  (then: quire read-proxy run … --set …)")
def settings(json: Json = False) -> None:
    """List what `quire read-proxy run --set NAME=VALUE` can change, with the defaults."""
    show_settings(without="write.", as_json=json)
