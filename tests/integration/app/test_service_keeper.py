"""One bookie that is kept running: what becomes of it is noticed, told, and mended."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple
from pathlib import Path

import pytest

from quire.app.cluster_events import (
    BookieMode,
    ClusterEvent,
    ServiceEnded,
    ServiceFailing,
    ServiceKilled,
    ServiceRestarted,
)
from quire.app.local_services import bookie_plan
from quire.app.restarts import FAILING_STARTS, RestartPolicy
from quire.app.service_keeper import ServiceKeeper, ServicePlan
from quire.embedded.folder import DataFolder
from quire.stream.binding import create_namespace
from tests.support.waiting import eventually

DEADLINE_S = 60.0


class Garbled(ServicePlan):
    """A plan whose command line the bookie does not understand."""

    def command(self, port: int) -> list[str]:
        return [*super().command(port)[:-1], "not json"]


class Kept:
    """A keeper of bookie-1 in a data folder, and all that it told."""

    def __init__(self, folder: DataFolder, overrides: tuple[str, ...], plan_type: type[ServicePlan]) -> None:
        self.told: list[ClusterEvent] = []
        self.hurry = asyncio.Event()
        plan = plan_type(*astuple(bookie_plan(folder, 1, 0, overrides)))
        policy = RestartPolicy(first_s=0.01, last_s=0.01)
        self.keeper = ServiceKeeper(plan, tell=self.told.append, on_change=lambda: None, policy=policy)

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        async def holds() -> bool:
            return condition()

        await eventually(holds, within_s=DEADLINE_S, what=f"{what}: {self.told}, {self.keeper.state}")

    def of(self, kind: type[ClusterEvent]) -> list[ClusterEvent]:
        return [event for event in self.told if isinstance(event, kind)]

    @property
    def pid(self) -> int:
        assert self.keeper.state.process is not None
        return self.keeper.state.process.pid


@pytest.fixture
async def folder(tmp_path: Path) -> DataFolder:
    folder = DataFolder(str(tmp_path))
    await create_namespace(folder.streams())
    return folder


@asynccontextmanager
async def kept(
    folder: DataFolder, *, overrides: tuple[str, ...] = (), plan_type: type[ServicePlan] = ServicePlan
) -> AsyncIterator[Kept]:
    async with AsyncExitStack() as stack:
        kept = Kept(folder, overrides, plan_type)
        kept.keeper.start()
        stack.push_async_callback(kept.keeper.stop, kept.hurry)
        await asyncio.wait_for(kept.keeper.settled.wait(), DEADLINE_S)
        yield kept


async def test_a_bookie_that_is_killed_comes_back_at_its_address(folder: DataFolder) -> None:
    async with kept(folder) as bookie:
        before = bookie.keeper.state
        assert (before.state, before.restarts, before.problem) == ("up", 0, None)
        assert before.admin is not None
        assert bookie.told == []  # Of a first start nobody is told but who waits for it.
        os.kill(bookie.pid, signal.SIGKILL)
        await bookie.wait(lambda: len(bookie.of(ServiceRestarted)) == 1, "it is back")
        after = bookie.keeper.state
        assert bookie.told == [
            ServiceEnded("bookie-1", "it was ended by SIGKILL", 0.01),
            ServiceRestarted("bookie-1", after.address or "", bookie.pid),
        ]
        assert (after.state, after.restarts, after.address) == ("up", 1, before.address)
        assert after.process != before.process
        pid = bookie.pid
    assert not Path(f"/proc/{pid}").exists()
    log = Path(folder.path, "logs", "bookie-1.log").read_text().splitlines()
    assert json.loads(log[-1])["event"] == "bookie.stopped"


async def test_a_start_that_fails_again_and_again_is_told_with_its_reason_and_tried_on(folder: DataFolder) -> None:
    """Method: a file in the place of its journal, which is taken away in the end."""
    (Path(folder.path) / "bookie-1").mkdir()
    in_the_way = Path(folder.path) / "bookie-1" / "journal"
    in_the_way.write_text("")
    async with kept(folder) as bookie:
        assert bookie.keeper.state.state == "restarting"
        await bookie.wait(lambda: len(bookie.of(ServiceFailing)) == 1, "it is told as failing")
        (failing,) = bookie.told
        assert isinstance(failing, ServiceFailing)
        assert failing.failed_starts == FAILING_STARTS
        assert "the bookie cannot use its directories or its port" in failing.why
        assert failing.hint.startswith("Check that the directories exist")
        assert bookie.keeper.state.state == "failing"
        in_the_way.unlink()
        await bookie.wait(lambda: bookie.keeper.state.state == "up", "it comes back by itself")
        assert len(bookie.of(ServiceRestarted)) == 1


async def test_a_mistake_in_its_options_is_told_as_its_sentence(folder: DataFolder) -> None:
    async with kept(folder, overrides=("port",)) as bookie:
        assert bookie.keeper.state.problem == "'port' is not NAME=VALUE"


async def test_an_error_that_nobody_foresaw_is_told_by_the_last_line_of_its_traceback(folder: DataFolder) -> None:
    async with kept(folder, plan_type=Garbled) as bookie:
        problem = bookie.keeper.state.problem
        assert problem is not None
        assert problem.startswith("it ended with exit code 1: json.decoder.JSONDecodeError")


async def test_a_bookie_that_takes_nothing_new_is_told_with_the_reason(folder: DataFolder) -> None:
    async with kept(folder):
        pass
    (Path(folder.path) / "bookie-1" / "READ_ONLY").write_text("moving")
    async with kept(folder) as bookie:
        reasons = ("an operator made the bookie read-only: moving",)
        assert bookie.told == [BookieMode("bookie-1", True, reasons)]
        assert (bookie.keeper.state.state, bookie.keeper.state.problem) == ("readonly", reasons[0])
        assert bookie.keeper.serves


async def test_one_that_does_not_stop_is_killed_when_nobody_wants_to_wait(folder: DataFolder) -> None:
    async with kept(folder) as bookie:
        pid = bookie.pid
        os.kill(pid, signal.SIGSTOP)
        bookie.hurry.set()
        await bookie.keeper.stop(bookie.hurry)
        (killed,) = bookie.of(ServiceKilled)
        assert isinstance(killed, ServiceKilled)
        assert killed.pid == pid
    assert not Path(f"/proc/{pid}").exists()


async def test_a_stopped_process_is_woken_to_stop_in_good_order(folder: DataFolder) -> None:
    async with kept(folder) as bookie:
        os.kill(bookie.pid, signal.SIGSTOP)
        await bookie.keeper.stop(bookie.hurry)
        assert bookie.told == []
    assert not Path(folder.path, "bookie-1", "DIRTY").exists()
