"""What the README, the guide and the examples show is run here, as a reader would."""

import ast
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Final

import pytest
from tests.e2e.document_runner import Reader
from tests.e2e.terminal import on_screen
from tests.support.documents import ROOT, Block, blocks, read_blocks, steps
from tests.support.servers.etcd import EtcdServer
from tests.support.servers.ports import free_port
from tests.support.servers.zookeeper import ZooKeeperServer

from quire.metadata import MetadataStore, open_store
from quire.protocol.quorum import is_covered, write_sets
from quire.testing import Simulation, simulate
from quire.types import Quorum

DOCUMENTS: Final = ["README.md", *sorted(f"docs/guide/{path.name}" for path in (ROOT / "docs/guide").glob("*.md"))]
GROWING: Final = "docs/guide/growing.md"
FIRST_PAGES: Final = ["README.md", "docs/guide/first-steps.md"]
POSITIONS: Final = "docs/guide/positions.md"
PAYMENTS: Final = 100_000  # The program takes 1,000 at a time.

# What no test can do to the machine that it runs on, and what is done instead.
NOT_RUN: Final = {
    "python3 -m venv .venv": "the tests run in an environment that was made like this",
    ". .venv/bin/activate": "its commands are the first on the PATH",
    "pip install .": "it needs a package index; Quire is installed",
    "make up": "it would install Quire anew; see test_make_knows_the_commands_of_the_readme",
    "make test": "it is what runs this test",
}

# Programs that define functions are called by a test, which knows what they should return.
CALLED_BY: Final = {
    "docs/guide/ledgers.md": "tests/e2e/test_ledger_command.py",
    "docs/guide/metadata.md": "tests/e2e/test_documents.py",
    "docs/guide/streams.md": "tests/e2e/test_stream_guide.py",
    "docs/guide/testing.md": "tests/e2e/test_testing_guide.py",
}
EACH_AS_A_WHOLE: Final = ["docs/guide/testing.md"]  # Which are tests themselves.


def programs(document: str) -> list[Block]:
    return [block for block in read_blocks(document) if block.language == "python"]


def commands(document: str) -> list[str]:
    found = [step.command for block in read_blocks(document) if block.language == "console" for step in steps(block)]
    return [command for command in found if command not in ("", "^C")]


# --- Nothing is left out


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_one_that_a_test_runs(document: str) -> None:
    """Counted on another way than that of `read_blocks`: by the lines of ``` alone."""
    text = (ROOT / document).read_text()
    assert len(read_blocks(document)) * 2 == text.count("```")
    run = commands(document)
    for program in programs(document):
        if program.file is not None:
            assert any(f"python {program.file}" in command for command in run), f"{program.place}: nobody runs it"
            continue
        caller = (ROOT / CALLED_BY[document]).read_text()
        if document not in EACH_AS_A_WHOLE:
            functions = [node.name for node in ast.parse(program.text).body if isinstance(node, ast.AsyncFunctionDef)]
            assert functions, f"{program.place}: it defines nothing that a test could call"
            assert [name for name in functions if f'["{name}"]' not in caller] == [], program.place


@pytest.mark.parametrize("document", CALLED_BY)
def test_whoever_calls_the_programs_of_a_document_reads_all_of_them(document: str) -> None:
    caller = (ROOT / CALLED_BY[document]).read_text()
    assert f'"{document}"' in caller
    assert re.search(r"""blocks\([^)]*, "python"\)""", caller)


def test_what_is_not_run_is_little_and_still_shown() -> None:
    assert set(NOT_RUN) <= {command for document in DOCUMENTS for command in commands(document)}


def test_make_knows_the_commands_of_the_readme() -> None:
    for target, does in (("up", "quire up"), ("test", "pytest")):
        assert f"make {target}" in commands("README.md")
        assert does in run(ROOT, "make", "--dry-run", target)


def test_a_document_cannot_hide_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.documents.ROOT", tmp_path)
    for text in (
        "Do:\n\n    quire up\n",
        "- Do:\n  ```console\n  $ quire up\n  ```\n",
        "```sh\nquire up\n```\n",
        "```console quietly=1\n$ quire up\n```\n",
        "```console\n$ quire up\n",
        "```text\n```python\n```\n",
    ):
        (tmp_path / "page.md").write_text(text)
        with pytest.raises(ValueError, match=r"page\.md"):
            read_blocks("page.md")


# --- Commands


@pytest.fixture
def stand_ins(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """What is used for the servers that a document names."""
    proxy = free_port(in_a_row=2)
    addresses = {f"127.0.0.1:318{number}": f"127.0.0.1:{free_port()}" for number in (1, 2, 3)} | {
        "quire up": f"quire up --proxy-port {proxy}",
        "127.0.0.1:7400": f"127.0.0.1:{proxy}",
    }
    if request.param == "zookeeper":
        zookeeper = ZooKeeperServer(tmp_path / "zookeeper")
        zookeeper.start()
        yield {"zk1:2181": zookeeper.address, **addresses}
        zookeeper.stop()
    elif request.param == "etcd":
        etcd = EtcdServer(tmp_path / "etcd")
        etcd.start()
        metadata, streams = f"etcd://{etcd.address}", f"distributedlog+etcd://{etcd.address}"
        yield {"zk+hierarchical://zk1:2181": metadata, "distributedlog://zk1:2181": streams, **addresses}
        etcd.stop()
    else:
        yield addresses


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("document", "stand_ins"),
    [
        *(
            pytest.param(document, "nothing", marks=() if document in FIRST_PAGES else pytest.mark.extended)
            for document in DOCUMENTS
            if document != GROWING and commands(document)
        ),
        pytest.param(GROWING, "zookeeper", marks=pytest.mark.extended),
        pytest.param(GROWING, "etcd", marks=pytest.mark.extended),
    ],
    indirect=["stand_ins"],
)
def test_the_commands_of_a_document_do_what_it_says(document: str, stand_ins: dict[str, str], tmp_path: Path) -> None:
    reader = Reader(tmp_path, stand_ins=stand_ins, not_run=NOT_RUN)
    reader.follow(read_blocks(document))
    assert reader.commands == [command for command in commands(document) if command not in NOT_RUN]


def test_the_runner_sees_what_is_not_as_shown(tmp_path: Path) -> None:
    for number, (shown, complaint) in enumerate(
        (
            ("$ echo one\ntwo\n", "but it is:\none"),
            ("$ echo one\none\ntwo\n", "but it is:\none"),
            ("$ printf '1\\n2\\n3\\n'\n1\n…\n4\n", "but it is:\n1\n2\n3"),
            ("$ false\n", "exit code 1"),
            ("$ echo Traceback\n", "Traceback"),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError, match=re.escape(complaint)):
            Reader(folder, stand_ins={}, not_run={}).follow([Block("page.md", 1, "console", {}, shown)])


def test_the_runner_follows_what_goes_on_at_another_terminal(tmp_path: Path) -> None:
    terminal = {"terminal": "other"}
    wait = "trap 'echo bye; exit 0' INT; echo hello; while :; do read -t 60; done"
    Reader(tmp_path, stand_ins={}, not_run={}).follow(
        [
            Block("page.md", 1, "console", terminal, f'$ bash -c "{wait}"\nhello\n'),
            Block("page.md", 2, "console", {}, "$ export NAME=reader; cd /\n$ echo $NAME at $PWD\nreader at /\n"),
            Block("page.md", 3, "console", terminal, "^C\nbye\n$ echo $NAME.\n.\n"),
            Block("page.md", 4, "console", {"exit": "3"}, "$ (exit 3)\n"),
        ]
    )


def test_a_port_that_stands_in_for_one_is_not_taken_for_another(tmp_path: Path) -> None:
    reader = Reader(tmp_path, stand_ins={":3181": ":31849", ":3184": ":2814"}, not_run={})
    reader.follow([Block("page.md", 1, "console", {}, "$ echo :3181 :3184 | tr -d :\n31849 2814\n")])


def test_lines_that_are_drawn_anew_count_as_they_are_in_the_end() -> None:
    assert (
        on_screen("\x1b[?25l\r\x1b[2K\x1b[32m|\x1b[0m 1\r\x1b[2K/ 20\r\n\x1b[1A\x1b[2K20 \x1b[1mdone\x1b[0m\r\n")
        == "20 done\n"
    )
    assert on_screen("abc\rx\r\n") == "xbc\n"


# --- Programs


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_program_of_the_readme_is_short() -> None:
    (program,) = programs("README.md")
    assert len(program.text.splitlines()) < 20


@pytest.mark.extended
def test_sums_are_right_wherever_the_program_is_killed(tmp_path: Path) -> None:
    """Method: kill it as soon as it says that it has added something, then after twice as much, and so on, until it
    came to the end."""
    (program,) = programs(POSITIONS)
    (tmp_path / "totals.py").write_text(program.text)
    payments = "".join(f"customer-{number % 7} {number}\n" for number in range(PAYMENTS))
    write = [sys.executable, "-m", "quire", "write", "payments", "--uri", "file:./quire-data"]
    subprocess.run(write, cwd=tmp_path, input=payments, text=True, check=True, capture_output=True, timeout=60)
    kills = 0
    while True:
        process = subprocess.Popen([sys.executable, "totals.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
        with process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(1 + 2**kills)]  # The first one says where it begins.
            if not lines[-1]:
                break
            process.send_signal(signal.SIGKILL)
            kills += 1
    assert process.returncode == 0
    assert kills >= 3
    with sqlite3.connect(tmp_path / "totals.db") as database:
        totals = dict(database.execute("SELECT customer, cents FROM totals"))
    assert totals == {f"customer-{n}": sum(range(n, PAYMENTS, 7)) for n in range(7)}


def guide() -> dict[str, object]:
    """The functions that the guide to metadata stores defines."""
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


# --- What the guide claims


def test_the_table_of_quorums_is_right() -> None:
    """Against the rules that writers and recoveries go by, for every set of bookies."""
    rows = re.findall(
        r"^\| (\d)/(\d)/(\d) \| (\d) \| (\d) \| (\d) \|", (ROOT / "docs/guide/quorums.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 5
    for row in rows:
        ensemble, write, ack, lost, missing, copies = map(int, row)
        quorum = Quorum(ensemble, write, ack)
        positions = range(ensemble)

        def holds(count: int, rule: object, positions: range = positions) -> bool:
            return all(rule(set(gone)) for gone in combinations(positions, count))  # type: ignore[operator]

        def all_is_known(gone: set[int], quorum: Quorum = quorum, positions: range = positions) -> bool:
            return is_covered([position for position in positions if position not in gone], quorum)

        def can_be_acknowledged(gone: set[int], quorum: Quorum = quorum) -> bool:
            return all(len(set(window) - gone) >= quorum.ack for window in write_sets(quorum))

        for allowed, rule in ((lost, all_is_known), (missing, can_be_acknowledged)):
            assert holds(allowed, rule), row
            assert allowed == ensemble or not holds(allowed + 1, rule), row
        assert copies == write


# --- Examples


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
