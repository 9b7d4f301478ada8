"""What runs in a local cluster: how many of each kind, where each listens, and with which options it is started."""

from pathlib import Path
from typing import Any, Final

from quire.app.ports import check_ports
from quire.app.service_keeper import ServicePlan
from quire.embedded.folder import DataFolder
from quire.errors import InvalidArgument

LOGS: Final = "logs"
BOOKIE, WRITE_PROXY, READ_PROXY = "bookie", "write-proxy", "read-proxy"
AUTORECOVERY: Final = "autorecovery"

_USUAL_PORTS: Final = {WRITE_PROXY: 7400, READ_PROXY: 7500}
_COPIES: Final = 3  # What a writer asks for unless it is told otherwise: see `quire.stream.settings`.
_LOST_BOOKIE_S: Final = 30  # Longer than the longest pause between two starts of a bookie that crashes.
_ROLES: Final = {WRITE_PROXY: "write", READ_PROXY: "read"}


def bookie_plan(folder: DataFolder, number: int, port: int, overrides: tuple[str, ...]) -> ServicePlan:
    """Of one bookie."""
    name = folder.bookie_id(number)
    options: dict[str, Any] = {
        "id": name,
        "metadata": folder.ledgers.text,
        "data": folder.bookie(number).data,
        "moves_with": folder.path,
        "overrides": overrides,
    }
    return ServicePlan(name, BOOKIE, port, True, _log(folder, name), "quire.app.bookie_process", options)


def proxy_plans(
    folder: DataFolder,
    kind: str,
    count: int,
    first_port: int | None,
    *,
    bookies: int,
    gateway: str | None = None,
    http_hosts: tuple[str, ...] = (),
) -> list[ServicePlan]:
    """Of all proxies of a kind. Their ports begin at `first_port`; if that is None they are the usual ones, or others
    if those are taken; if it is 0 any will do. The first one has the gateway. Raises `PortInUse`, `InvalidArgument`.
    """
    is_fixed, first = first_port is not None, _USUAL_PORTS[kind] if first_port is None else first_port
    ports = {f"{kind}-{number}": first + number - 1 if first else 0 for number in range(1, count + 1)}
    if is_fixed:
        check_ports(ports, option="--proxy-port")
    copies = min(_COPIES, bookies)
    acks = min(2, copies)
    overrides = [
        f"stream.ensemble={copies}",
        f"stream.write_quorum={copies}",
        f"stream.ack_quorum={acks}",
        "write.graceful_period_s=0",  # Everything stops: there is nowhere to send clients.
    ]
    plans: list[ServicePlan] = []
    for name, port in ports.items():
        options = {
            "role": _ROLES[kind],
            "uri": folder.streams().text,
            "gateway": None if plans else gateway,
            "http_hosts": http_hosts,
            "overrides": overrides,
        }
        log = _log(folder, name)
        plans.append(ServicePlan(name, kind, port, is_fixed, log, "quire.app.proxy_process", options))
    return plans


def autorecovery_plan(folder: DataFolder) -> ServicePlan:
    """Of the process that repairs ledgers. A bookie that only restarts is back before anything is marked."""
    options = {
        "metadata": folder.ledgers.text,
        "name": AUTORECOVERY,
        "overrides": [f"recovery.lost_bookie_delay_s={_LOST_BOOKIE_S}"],
    }
    log = _log(folder, AUTORECOVERY)
    return ServicePlan(AUTORECOVERY, AUTORECOVERY, 0, False, log, "quire.app.autorecovery_process", options)


def check_count(kind: str, count: int, most: int) -> None:
    """Raises `InvalidArgument`."""
    if not 0 <= count <= most:
        raise InvalidArgument(f"a local cluster has 0 to {most} {kind} processes, not {count}")


def _log(folder: DataFolder, name: str) -> Path:
    return Path(folder.path, LOGS, f"{name}.log")
