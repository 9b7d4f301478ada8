"""Which process is meant: signals reach that one, or nobody."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quire.app.processes import NoSuchProcess, ProcessMark, child_ended, holder_of, mark_of, open_process, own_mark
from quire.runtime import OsDisk
from tests.support.waiting import eventually

DEADLINE_S = 20.0
WAITING = "import sys; print('ready', flush=True); sys.stdin.read()"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that waits for its standard input to end."""
    with subprocess.Popen([sys.executable, "-c", WAITING], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def known(pid: int) -> ProcessMark:
    mark = mark_of(pid)
    assert mark is not None
    return mark


def known_to_be_dead(mark: ProcessMark) -> bool:
    return not mark.is_alive


def test_a_mark_is_that_of_one_process(child: subprocess.Popen[bytes]) -> None:
    mark = known(child.pid)
    assert mark.is_alive
    assert mark != own_mark()
    age_s = mark.age_s
    assert age_s is not None
    assert 0 <= age_s < DEADLINE_S
    assert ProcessMark.from_json(mark.to_json()) == mark
    child.kill()
    child.wait(DEADLINE_S)
    assert known_to_be_dead(mark)
    assert mark.age_s is None


async def test_one_that_ended_is_dead_before_its_parent_takes_note(child: subprocess.Popen[bytes]) -> None:
    mark = known(child.pid)
    child.kill()

    async def is_dead() -> bool:
        return not mark.is_alive

    await eventually(is_dead, what="the zombie counts as dead")
    assert child.returncode is None


async def test_a_signal_reaches_the_process_that_was_meant(child: subprocess.Popen[bytes]) -> None:
    with open_process(known(child.pid)) as process:
        assert not await process.wait_ended(within_s=0.01)
        process.signal(signal.SIGTERM)
        assert await process.wait_ended(within_s=DEADLINE_S)
        assert child.wait(DEADLINE_S) == -signal.SIGTERM
        process.signal(signal.SIGTERM)  # Nobody is there any more: nothing happens.


def test_nobody_is_signalled_who_only_has_the_number_of_another(child: subprocess.Popen[bytes]) -> None:
    mark = known(child.pid)
    boot, _, ticks = mark.started.rpartition(":")
    with pytest.raises(NoSuchProcess), open_process(replace(mark, started=f"{boot}:{int(ticks) + 1}")):
        pass
    child.communicate(b"", timeout=DEADLINE_S)
    with pytest.raises(NoSuchProcess), open_process(mark):
        pass


async def test_the_end_of_a_child_is_noticed(child: subprocess.Popen[bytes]) -> None:
    ending = asyncio.create_task(child_ended(child))
    await asyncio.sleep(0)
    assert not ending.done()
    child.kill()
    assert await asyncio.wait_for(ending, DEADLINE_S) == -signal.SIGKILL
    assert await child_ended(child) == -signal.SIGKILL


async def test_the_holder_of_a_lock_is_known_while_it_holds_it(tmp_path: Path) -> None:
    path, disk = str(tmp_path / "lock"), OsDisk()
    assert holder_of(path) is None
    async with await disk.lock(path, owner=f"a test (process {os.getpid()})"):
        assert holder_of(path) == own_mark()
    assert holder_of(path) is None
    await disk.aclose()


def test_a_number_in_a_lock_file_proves_nothing(tmp_path: Path, child: subprocess.Popen[bytes]) -> None:
    for said in (f"process {child.pid}", "process", "process x", "", "process 0", f"process {2**40}"):
        (tmp_path / "lock").write_text(said)
        assert holder_of(str(tmp_path / "lock")) is None


async def test_a_child_is_told_to_stop_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Method: a parent that starts one and is killed with -9; the child says with its last breath that it was told."""
    child_program = (
        "import os, signal, sys, pathlib\n"
        "from quire.app.processes import stop_with_parent\n"
        "def told(*_):\n"
        "    pathlib.Path(sys.argv[1], 'told').touch()\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, told)\n"
        "assert stop_with_parent(os.getppid())\n"
        "assert not stop_with_parent(os.getpid())\n"
        "pathlib.Path(sys.argv[1], 'ready').write_text(str(os.getpid()))\n"
        "signal.pause()\n"
    )
    parent_program = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", parent_program, child_program, str(tmp_path))
    try:
        await eventually(lambda: exists(tmp_path / "ready"), what="the child is there")
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: exists(tmp_path / "told"), what="the child was told")


async def exists(path: Path) -> bool:
    return path.exists()
