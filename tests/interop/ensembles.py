"""Three bookies for the tests of ledgers: of one kind, or of both, in each layout of the metadata."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from quire.metadata import init_cluster, open_store, parse_uri
from quire.runtime import real_runtime
from tests.support.servers.apache_bookie import ApacheBookie, Storage
from tests.support.servers.bookie_process import BookieProcess
from tests.support.servers.quire_bookie import QuireBookie

# Kinds of their own, each with bookies of both makers: metadata in the layout of that name.
_OTHER_LAYOUTS: Final = ("flat", "longhierarchical")


def kinds(*names: str) -> pytest.MarkDecorator:
    """Run a test on three bookies of each kind. All tests of one kind go to one worker, so that they start once."""
    params = [pytest.param(name, marks=pytest.mark.xdist_group(f"{name} bookies")) for name in names]
    return pytest.mark.parametrize("bookies", params, indirect=True)


@dataclass(frozen=True, slots=True)
class Bookies:
    """A cluster of its own with three bookies. A test leaves them running, as it found them."""

    kind: str
    uri: str
    members: tuple[BookieProcess, ...]

    @property
    def names(self) -> list[str]:
        return [bookie.name for bookie in self.members]

    def __getitem__(self, name: str) -> BookieProcess:
        return next(bookie for bookie in self.members if bookie.name == name)

    def start(self) -> None:
        """Start those that do not run, all at once. From the main thread: see `BookieProcess.launch`."""
        stopped = [bookie for bookie in self.members if not bookie.running]
        for bookie in stopped:
            bookie.launch()
        with ThreadPoolExecutor() as threads:
            list(threads.map(BookieProcess.wait_ready, stopped))

    def kill(self) -> None:
        for bookie in self.members:
            bookie.kill()


def _members(kind: str, folder: Path, uri: str) -> tuple[BookieProcess, ...]:
    if kind == "apache":
        return tuple(ApacheBookie(folder / name, uri, name) for name in ("apache-1", "apache-2", "apache-3"))
    if kind == "quire":
        return tuple(QuireBookie(folder / name, uri, name) for name in ("quire-1", "quire-2", "quire-3"))
    if kind in _OTHER_LAYOUTS:
        ours = (QuireBookie(folder / name, uri, name) for name in ("quire-2", "quire-3"))
        return (ApacheBookie(folder / "apache-1", uri, "apache-1"), *ours)
    assert kind == "mixed"
    return (  # Apache's default storage beside the one that big clusters use.
        ApacheBookie(folder / "apache-1", uri, "apache-1"),
        ApacheBookie(folder / "apache-2", uri, "apache-2", storage=Storage.ROCKSDB),
        QuireBookie(folder / "quire-3", uri, "quire-3"),
    )


@contextmanager
def running_bookies(kind: str, folder: Path, zookeeper: str) -> Iterator[Bookies]:
    """Three new bookies in a new cluster. Blocks; call it from the main thread."""
    layout = kind if kind in _OTHER_LAYOUTS else "hierarchical"
    uri = f"zk+{layout}://{zookeeper}/ledgers-{kind}"
    asyncio.run(_init(uri))
    bookies = Bookies(kind, uri, _members(kind, folder, uri))
    try:
        bookies.start()
        yield bookies
        for bookie in bookies.members:
            bookie.stop()
    finally:
        bookies.kill()


async def _init(uri: str) -> None:
    parsed = parse_uri(uri)
    async with open_store(parsed) as store:
        await init_cluster(store, parsed, real_runtime())
