"""What `quire write-proxy` and `quire read-proxy` have in common: the options of a proxy, and running it."""

import os
from typing import Annotated, Final, Literal, NamedTuple

import typer

from quire.cli.output import print_settings, run

Uri = Annotated[
    str,
    typer.Option(
        "--uri",
        envvar="QUIRE_URI",
        metavar="URI",
        help="The namespace that it serves, such as distributedlog://zk1:2181/ns. Default: $QUIRE_URI.",
        show_default=False,
    ),
]
Advertise = Annotated[
    str | None, typer.Option(metavar="HOST", help="The name that clients connect to, if it is another.")
]
Region = Annotated[str, typer.Option(metavar="NAME", help="Where this proxy is, for clients that prefer near ones.")]
Admin = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to serve /metrics, /healthz, /readyz and /debug, or none.")
]
Gateway = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to serve HTTP and JSON for curl in the same process, or none.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Change a setting, such as stream.ensemble=1. Repeat."),
]
Timeout = Annotated[float, typer.Option(metavar="SECONDS", help="Give up on the metadata after this long.")]
Session = Annotated[
    float, typer.Option(metavar="SECONDS", help="How soon others take over what it owned when it is silent.")
]
Tokens = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Ask callers for tokens; these are known. Make them with `quire proxy token`.",
        show_default=False,
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(
        envvar="QUIRE_TOKEN_FILE",
        metavar="FILE",
        help="The token that this proxy shows to others; read again when it changes. Default: $QUIRE_TOKEN.",
        show_default=False,
    ),
]
TlsCertificate = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Serve over TLS, with this certificate: PEM.", show_default=False),
]
TlsKey = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Its key, if that is in another file: PEM.", show_default=False),
]
TlsCa = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Authorities that others' certificates are checked against: PEM. Default: the system's."
    ),
]
TlsClients = Annotated[
    bool, typer.Option("--tls-clients", help="Take only callers with a certificate that --tls-ca has signed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class TlsNames(NamedTuple):
    """The options about TLS."""

    certificate: str | None = None
    key: str | None = None
    ca: str | None = None
    asks_clients: bool = False


NO_TLS: Final = TlsNames()


def run_proxy_command(
    role: Literal["write", "read"],
    uri: str,
    listen: str,
    advertise: str | None,
    region: str,
    admin: str,
    gateway: str,
    http_hosts: list[str] | None,
    overrides: list[str] | None,
    timeout: float,
    session: float,
    tokens: str | None,
    token_file: str | None,
    limits: str | None = None,
    *,
    tls: TlsNames = NO_TLS,
) -> None:
    import uvloop  # Here, because only servers need these, and the other commands should start fast.

    from quire.app.proxy import ProxyOptions, run_proxy
    from quire.rpc.serving.tls import TlsFiles
    from quire.telemetry.events import configure

    configure()
    if tls.certificate is None and tls != NO_TLS:
        raise typer.BadParameter("TLS needs --tls-certificate")
    options = ProxyOptions(
        role,
        uri,
        listen,
        advertise=advertise,
        region=region,
        admin=admin,
        gateway=gateway,
        http_hosts=tuple(http_hosts or ()),
        metadata_timeout_s=timeout,
        session_timeout_s=session,
        tokens=tokens,
        token=os.environ.get("QUIRE_TOKEN"),
        token_file=token_file,
        limits=limits,
        tls=None if tls.certificate is None else TlsFiles(ca=tls.ca, certificate=tls.certificate, key=tls.key),
        tls_asks_clients=tls.asks_clients,
        overrides=tuple(overrides or ()),
    )
    run(run_proxy(options), as_json=False, loop_factory=uvloop.new_event_loop)


def show_settings(*, without: str, as_json: bool) -> None:
    from quire.app.overrides import setting_names
    from quire.app.proxy import ProxySettings

    found = {name: value for name, value in setting_names(ProxySettings()) if not name.startswith(without)}
    print_settings(found, as_json=as_json)
