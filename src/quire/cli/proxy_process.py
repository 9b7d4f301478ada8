"""What `quire write-proxy` and `quire read-proxy` have in common: the options of a proxy, and running it."""

from typing import Annotated, Literal

import typer

from quire.cli.output import out, print_json, run

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
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def run_proxy_command(
    role: Literal["write", "read"],
    uri: str,
    listen: str,
    advertise: str | None,
    region: str,
    admin: str,
    gateway: str,
    overrides: list[str] | None,
    timeout: float,
    session: float,
) -> None:
    import uvloop  # Here, because only servers need these, and the other commands should start fast.

    from quire.app.proxy import ProxyOptions, run_proxy
    from quire.telemetry.events import configure

    configure()
    options = ProxyOptions(
        role,
        uri,
        listen,
        advertise=advertise,
        region=region,
        admin=admin,
        gateway=gateway,
        metadata_timeout_s=timeout,
        session_timeout_s=session,
        overrides=tuple(overrides or ()),
    )
    run(run_proxy(options), as_json=False, loop_factory=uvloop.new_event_loop)


def show_settings(*, without: str, as_json: bool) -> None:
    from quire.app.overrides import setting_names
    from quire.app.proxy import ProxySettings

    found = {name: value for name, value in setting_names(ProxySettings()) if not name.startswith(without)}
    if as_json:
        print_json(found)
        return
    for name, value in found.items():
        shown = f"{value:,}".replace(",", "_") if isinstance(value, int) and not isinstance(value, bool) else str(value)
        out().print(f"{name:44} {shown}")
