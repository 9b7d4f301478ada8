"""`quire write-proxy`: run a write proxy: many programs write streams through it."""

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

app = typer.Typer(help="Run a write proxy: many programs write streams through it.", no_args_is_help=True)


@app.command("run", epilog="Example:  quire write-proxy run --uri distributedlog://zk1:2181/ns")
def run_command(
    uri: Uri,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Port 0 takes any free one.")] = "127.0.0.1:7400",
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
    limits: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Limits of requests and bytes, which may change while it runs: TOML."),
    ] = None,
) -> None:
    """Run a write proxy in the foreground. Ctrl-C gives its streams to others first; a second one stops at once."""
    tls = TlsNames(tls_certificate, tls_key, tls_ca, tls_clients)
    run_proxy_command(
        "write",
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
        limits,
        tls=tls,
    )


@app.command(epilog="Example:  quire write-proxy settings  (then: quire write-proxy run … --set …)")
def settings(json: Json = False) -> None:
    """List what `quire write-proxy run --set NAME=VALUE` can change, with the defaults."""
    show_settings(without="read.", as_json=json)
