"""What the README, the guide and the examples show is run here, as a reader would."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from quire.metadata import MetadataStore, open_store
from quire.testing import Simulation, simulate

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_of_the_readme_is_short_and_works(tmp_path: Path) -> None:
    program = blocks("README.md", "python")[0]
    assert len(program.splitlines()) < 20
    for visit in (1, 2, 3):
        assert run(tmp_path, sys.executable, "-c", program) == f"visit number {visit}\n"


def test_the_commands_of_the_readme_work(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^ {4}quire (metadata \w+ +sqlite:\S+)", text, re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        run(tmp_path, sys.executable, "-m", "quire", *command.split())


def test_the_commands_of_the_guide_work(tmp_path: Path) -> None:
    (block,) = blocks("docs/guide/metadata.md", "sh")
    for command in block.splitlines():
        name, *args = command.split()
        assert name == "quire"
        run(tmp_path, sys.executable, "-m", "quire", *args)


def guide() -> dict[str, object]:
    """The functions that the guide defines."""
    namespace: dict[str, object] = {}
    for block in blocks("docs/guide/metadata.md", "python"):
        exec(compile(block, "docs/guide/metadata.md", "exec"), namespace)
    return namespace


async def test_the_programs_of_the_guide_work() -> None:
    functions = guide()
    async with open_store("memory:") as store:
        await store.create("/counter", b"41")
        await functions["add_one"](store, "/counter")  # type: ignore[operator]
        assert (await store.get("/counter")).data == b"42"
        await store.create("/history")
        version = (await store.create("/state")).version
        await functions["move"](store, version)  # type: ignore[operator]
        assert (await store.get("/history/moved")).data == b"by me"
        await functions["lead"](store)  # type: ignore[operator]


def test_the_follower_of_the_guide_sees_every_last_value(capsys: pytest.CaptureFixture[str]) -> None:
    follow = guide()["follow"]

    async def main(sim: Simulation) -> None:
        async with open_store("memory:", runtime=sim.host("a").runtime) as store:
            await store.create("/a", b"0")
            task = sim.host("a").spawn(follow(store, "/a"))  # type: ignore[operator]
            await _count(store, sim)
            task.cancel()

    simulate(1, main)
    assert capsys.readouterr().out.splitlines()[-1] == "b'5'"


async def _count(store: MetadataStore, sim: Simulation) -> None:
    for number in range(1, 6):
        node = await store.get("/a")
        await store.set("/a", b"%d" % number, expected=node.stat.version)
        await sim.host("a").runtime.clock.sleep(1)


def test_the_shared_counter_counts_exactly(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, str(ROOT / "examples/shared_counter.py"))
    assert printed.splitlines()[-1] == "the counter says 1000, and 4 x 250 = 1000"
    assert list(tmp_path.iterdir()) == []


def test_of_several_processes_one_leads_at_a_time(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/leader_election.py"), "sqlite:./leader.db", "0.2"]
    processes = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, stderr=subprocess.STDOUT)
        for _ in range(3)
    ]
    for process in processes:
        printed, _ = process.communicate(timeout=60)
        assert [line for line in printed.splitlines() if not line.startswith("waiting")] == ["leading", "stepping down"]
