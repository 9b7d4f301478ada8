"""The real servers that tests run against: each is started once a worker, when the first test asks for it."""

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from quire.testing import sim_run
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.zookeeper import ZooKeeperServer

# Shells have what they start in the background ignore Ctrl-C, and so would all that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines that stand still for a moment have no slow examples. Where CI is set, each run has the same ones.
settings.register_profile("quire", settings(deadline=None, print_blob=True))
settings.load_profile("quire")

# `pytester` is for the tests of our own plug-in.
pytest_plugins = ["pytester", "tests.support.tiers", "tests.support.spark.session"]

sim_run.freezes_heap = False  # The hook below does it.


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Thousands of tests and all of Quire stay to the end: garbage collections look only at what a test makes."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # Libraries count what is left when Python ends, and complain.


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    server = EtcdServer(tmp_path_factory.mktemp("etcd"))
    server.start()
    yield server
    server.stop()
