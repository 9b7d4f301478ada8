"""The kinds of tests: which run when, which may run twice, and which share a worker.

`real`      uses processes, sockets or files, so a busy machine can hold it up. `.ci/run` runs it once more, alone,
            before it counts as failed. Set here by folder, and in contract tests by the implementation in its name.
`extended`  is left to `make test-all`: long forms, combinations, and faults beyond the first of a kind. Of the contract
            on metadata, real servers have the tree, sessions and watches in `make test`, the views above it here.

All other tests own their time: they never run twice. `--failures-to FILE` writes down what failed, for `.ci/run`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import pytest

_HERMETIC_CONTRACT: Final = re.compile(r"tests/contract/[^[]*(\[.*\b(memory|sim|local)\b.*)?$")
_REAL_FOLDERS: Final = ("tests/contract/", "tests/integration/", "tests/e2e/", "tests/soak/", "tests/interop/")
_ON_SERVERS_EXTENDED: Final = re.compile(
    r"tests/contract/metadata/test_(?!tree|sessions|watches)\w+\.py::.*\[(zk|etcd)"
)
_SERVERS: Final = ("spark", "zookeeper", "etcd")  # Fixtures of a whole worker: tests that share one run on one worker.
_SCHEMES: Final = {"zk": "zookeeper"}


def pytest_addoption(parser: pytest.Parser) -> None:
    help_ = "append a line for each failed test, `real NAME` or `hermetic NAME`, and `exit CODE` at the end"
    parser.addoption("--failures-to", metavar="FILE", help=help_)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "real: uses processes, sockets or files")
    config.addinivalue_line("markers", "extended: part of make test-all, not of make test")
    file = config.getoption("failures_to")
    if file is not None and not hasattr(config, "workerinput"):  # Not in xdist's workers: they report to this process.
        config.pluginmanager.register(_Failures(Path(file)))


@pytest.hookimpl(tryfirst=True)  # Before xdist looks for groups, and before -m selects.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _ON_SERVERS_EXTENDED.match(item.nodeid):
            item.add_marker("extended")
        if _is_real(item.nodeid):
            item.add_marker("real")
            server = _server(item)
            if server is not None and item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(server))


def one_in(interval: int, values: Iterable[object]) -> list[Any]:
    """Parameters: one of so many for `make test`, the first of all among them, the rest for `make test-all`."""
    return [
        pytest.param(
            *(value if type(value) is tuple else (value,)),
            marks=pytest.mark.extended if number % interval else (),
        )
        for number, value in enumerate(values)
    ]


class _Failures:
    """Writes each failed test once, when it fails."""

    def __init__(self, file: Path) -> None:
        self._file, self._seen = file, set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = _without_group(report.nodeid)
        if report.failed and name not in self._seen:
            self._seen.add(name)
            self._write("real" if _is_real(name) else "hermetic", name)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write("exit", str(int(exitstatus)))  # 1: all tests ran, and some failed.

    def _write(self, *words: str) -> None:
        with self._file.open("a") as file:
            print(*words, file=file)


def _server(item: pytest.Item) -> str | None:
    """Named as a fixture, or by the scheme of a URI as a parameter of one."""
    if not isinstance(item, pytest.Function) or item.nodeid.startswith("tests/interop/"):  # All need ZooKeeper there.
        return None
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    schemes = [value.partition("+")[0] for value in parameters if isinstance(value, str)]
    names = {*item.fixturenames, *(_SCHEMES.get(scheme, scheme) for scheme in schemes)}
    return next((server for server in _SERVERS if server in names), None)


def _is_real(name: str) -> bool:
    return name.startswith(_REAL_FOLDERS) and not _HERMETIC_CONTRACT.match(name)


def _without_group(name: str) -> str:
    """xdist appends `@group` to the names of tests that have one."""
    return name[: name.rindex("@")] if name.rfind("@") > name.rfind("]") else name
