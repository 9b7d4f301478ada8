"""One cluster of real processes for all rows of the failure table: it is what costs most."""

from collections.abc import Iterator

import pytest

from tests.support.servers.served_cluster import Served, ServedCluster


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with ServedCluster(tmp_path_factory.mktemp("served")) as running:
        yield running


@pytest.fixture(scope="session")
def served(cluster: ServedCluster) -> Served:
    """Two write proxies and a read proxy. They open few streams at once, and soon give up on storage that is silent.
    Tests say who owns what: nobody balances. What all have read stays for those who come late on a busy machine."""
    settings = (
        "balance.is_on=false",
        "acquires_max=3",
        "acquires_waiting_max=5",
        "service_timeout_s=2",
        "probation_s=20",
        "close_timeout_s=2",
    )
    return Served.start(cluster, "ns", *(f"write.{each}" for each in settings), reader_settings=("read.passed_s=30",))


@pytest.fixture(scope="session")
def limited(cluster: ServedCluster) -> Served:
    """Two write proxies that take little."""
    limits = (
        "balance.is_on=false",
        "streams_owned_max=3",
        "stream_limits.requests_hard=20",
        "proxy_limits.requests_hard=50",
    )
    return Served.start(cluster, "limited", *(f"write.{each}" for each in limits), readers=0)


@pytest.fixture(scope="session")
def balanced(cluster: ServedCluster) -> Served:
    """Two write proxies that even out what they have to do, all the time. They may have eight streams each."""
    settings = ("interval_s=0.5", "rest_s=1", "water_mark=0")
    balance = (f"write.balance.{each}" for each in settings)
    return Served.start(cluster, "balanced", *balance, "write.streams_owned_max=8", readers=0)
