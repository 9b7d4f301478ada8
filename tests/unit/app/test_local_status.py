"""When a local cluster is well."""

import pytest

from quire.app.local_status import ClusterStatus, ServiceStatus


def service(state: str) -> ServiceStatus:
    return ServiceStatus(
        "write-proxy-1",
        "write-proxy",
        state,
        address="127.0.0.1:7400",
        admin=None,
        pid=1,
        uptime_s=1.0,
        restarts=0,
        used_bytes=None,
        log=None,
        problem=None,
    )


@pytest.mark.parametrize(
    ("states", "is_well"),
    [
        (["up"], True),
        (["up", "busy"], True),
        (["up", "not ready"], False),
        (["busy", "readonly"], False),
        (["restarting"], False),
        (["silent"], False),
        ([], False),
    ],
)
def test_all_of_it_has_to_take_records(states: list[str], is_well: bool) -> None:
    status = ClusterStatus(
        "data",
        running=True,
        uri="quire://127.0.0.1:7400/default",
        pid=1,
        uptime_s=1.0,
        streams=0,
        free_bytes=1,
        total_bytes=2,
        services=tuple(map(service, states)),
    )
    assert status.is_well == is_well
