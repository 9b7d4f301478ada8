"""A bookie is let go for good: by Apache's command on our bookies, and by ours on Apache's."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.main import app
from quire.metadata import init_cluster, open_store, parse_uri
from quire.replication.autorecovery import open_autorecovery
from quire.runtime import real_runtime
from quire.types import BookieId, LedgerId
from tests.interop.conftest import Site
from tests.interop.ensembles import Bookies
from tests.interop.shell import BookieShell
from tests.interop.test_autorecovery import SETTINGS, Scene, scene
from tests.support.servers.apache_autorecovery import apache_autorecovery
from tests.support.servers.apache_bookie import ApacheBookie
from tests.support.servers.bookie_process import BookieProcess
from tests.support.servers.quire_bookie import QuireBookie

_SHELL_S = 300.0  # The command waits half a minute before it looks for the first time.

Start = Callable[[type[BookieProcess]], Bookies]


@pytest.fixture
def start(site: Site, tmp_path: Path) -> Iterator[Start]:
    """Starts three bookies of a kind in a cluster of their own: one of them is not to come back."""
    started: list[Bookies] = []

    def three(kind: type[BookieProcess]) -> Bookies:
        uri = site.uri("hierarchical")
        bookies = Bookies(
            kind.__name__, uri, tuple(kind(tmp_path / name, uri, name) for name in ("one", "two", "three"))
        )
        started.append(bookies)
        bookies.start()
        return bookies

    yield three
    for bookies in started:
        bookies.kill()


@pytest.fixture
async def _initialised(site: Site) -> None:
    uri = parse_uri(site.uri("hierarchical"))
    async with open_store(uri) as store:
        await init_cluster(store, uri, real_runtime())


@asynccontextmanager
async def our_autorecovery(uri: str) -> AsyncIterator[None]:
    async with open_autorecovery(uri, name="quire-autorecovery", settings=SETTINGS) as autorecovery:
        running = asyncio.create_task(autorecovery.run())
        try:
            yield
        finally:
            running.cancel()
            await asyncio.wait([running])


async def check_let_go(
    stage: Scene, shell: BookieShell, uri: str, victim: BookieProcess, ledgers: list[LedgerId]
) -> None:
    """All ledgers have their copies on others, the cookie is gone, and Apache's shell sees it as we do."""
    for ledger_id in ledgers:
        await stage.wait_repaired(ledger_id, victim.name)
    assert await stage.cluster.bookies.cookie(BookieId(victim.name)) is None
    listed = await shell.run(uri, "listunderreplicated")
    assert listed.code == 0, listed.text
    assert listed.ledgers() == [] == [mark.ledger_id async for mark in stage.marks.marks()]
    for ledger_id in ledgers[:1]:
        shown = await shell.run(uri, "ledgermetadata", "-ledgerid", str(ledger_id))
        assert shown.code == 0, shown.text
        ensembles = re.findall(r"ensembles=\{(.*?)\}", shown.text)
        assert ensembles, shown.text
        named = set(re.findall(r"\b(one|two|three)\b", ensembles[0]))
        metadata = await stage.metadata(ledger_id)
        assert named == {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_initialised")
@pytest.mark.parametrize("whose", ["ours", "apaches"])
async def test_apaches_decommissionbookie_finishes_on_our_bookies(whose: str, start: Start, tmp_path: Path) -> None:
    """It asks the auditor for an audit, and waits until nothing is left: whoever the auditor and the workers are."""
    bookies, shell = start(QuireBookie), BookieShell(tmp_path, ends_within_s=_SHELL_S)
    victim = bookies.members[0]
    async with scene(bookies) as stage, AsyncExitStack() as stack:
        ledgers = await stage.ledgers_with(BookieId(victim.name), 3)
        if whose == "ours":
            await stack.enter_async_context(our_autorecovery(bookies.uri))
        else:
            stack.enter_context(apache_autorecovery(tmp_path / "autorecovery", bookies.uri))
        alive = await shell.run(bookies.uri, "decommissionbookie", "-bookieid", victim.name)
        assert alive.code != 0, f"it lives: {alive.text}"
        assert await stage.cluster.bookies.cookie(BookieId(victim.name)) is not None
        victim.stop()
        await stage.wait_gone(victim.name)
        told = await shell.run(bookies.uri, "decommissionbookie", "-bookieid", victim.name)
        assert told.code == 0, told.text
        await check_let_go(stage, shell, bookies.uri, victim, ledgers)


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("_initialised")
async def test_our_decommission_finishes_on_apaches_bookies(start: Start, tmp_path: Path) -> None:
    bookies, shell = start(ApacheBookie), BookieShell(tmp_path, ends_within_s=_SHELL_S)
    victim = bookies.members[0]
    words = ["bookie", "decommission", victim.name, "--metadata", bookies.uri, "--json"]
    async with scene(bookies) as stage:
        ledgers = await stage.ledgers_with(BookieId(victim.name), 3)
        alive = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert alive.exit_code == 1, alive.output
        assert "is alive" in json.loads(alive.output)["error"]["message"]
        victim.stop()
        await stage.wait_gone(victim.name)
        done = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert done.exit_code == 0, done.output
        told = json.loads(done.output)
        assert (told["left"], told["cookie_deleted"]) == ([], True)
        await check_let_go(stage, shell, bookies.uri, victim, ledgers)
