"""The pytest plug-in, as its users have it: whole runs of pytest on small tests of theirs."""

import subprocess
import sys
from importlib.metadata import entry_points

import pytest

DEADLINE_S = 100.0

# Says at the very end of a run what is still there: threads, processes, sockets, and open files of temporary folders.
WATCHER = """
import contextlib, os, pathlib, sys, threading

def pytest_unconfigure():
    me = str(os.getpid())
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    stats = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # It has ended.
            stats.append(path.read_text().rpartition(")")[2].split())
    print("threads:", sorted(thread.name for thread in threading.enumerate()))
    print("processes:", [stat for stat in stats if stat[1] == me])
    print("files:", [target for target in targets if "socket" in target or "quire" in target])
    print("modules:", sorted(name for name in sys.modules if name.partition(".")[0] == "quire"))
"""

ITS_OWN = ["quire", "quire.testing", "quire.testing.plugin"]
NOTHING_LEFT = ["threads: ['MainThread']", "processes: []", "files: []"]


@pytest.fixture
def user(pytester: pytest.Pytester) -> pytest.Pytester:
    """The folder of a user, with nothing of our own configuration."""
    pytester.makeconftest(WATCHER)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")  # Else pytest-asyncio warns.
    return pytester


def run(user: pytest.Pytester, program: str, *args: str) -> pytest.RunResult:
    user.makepyfile(program)
    return user.runpytest_subprocess("-W", "error", "--strict-markers", *args, timeout=DEADLINE_S)


def test_pytest_finds_the_plugin_by_itself() -> None:
    (point,) = entry_points(group="pytest11", name="quire")
    assert point.value == "quire.testing.plugin"


def test_whoever_does_not_use_it_does_not_notice(user: pytest.Pytester) -> None:
    program = (
        "import sys, pytest\n"
        "before = set(sys.modules)\n"
        "import quire.testing.plugin\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    assert said.stdout == f"{ITS_OWN}\n"
    result = run(user, "def test_something_else(): pass")
    result.assert_outcomes(passed=1)
    assert f"modules: {ITS_OWN}" in result.outlines


def test_blocking_tests(user: pytest.Pytester) -> None:
    result = run(
        user,
        """
        import pytest

        def test_a_log(quire_log):
            for visit in (1, 2):
                with quire_log.connect_sync() as client, client.open_writer("visits") as writer:
                    assert writer.last_txid == visit - 1
                    writer.append(b"hello", txid=visit)

        def test_another_log_is_empty(quire_log, tmp_path):
            with quire_log.connect_sync() as client:
                assert client.list_streams() == []
            assert list(tmp_path.iterdir()) == []

        @pytest.mark.quire_bookies(4)
        def test_a_cluster_with_one_to_spare(quire_cluster):
            with quire_cluster.connect_sync() as client, client.open_writer("orders") as writer:
                writer.append(b"with 4")
                quire_cluster.stop_bookie(2)
                writer.append(b"with 3")
                assert [bookie.is_running for bookie in quire_cluster.bookies] == [True, False, True, True]
                quire_cluster.start_bookie(2)
                writer.append(b"with 4 again")
            with quire_cluster.connect_sync() as client, client.open_reader("orders") as reader:
                assert [next(reader).payload for _ in range(3)] == [b"with 4", b"with 3", b"with 4 again"]

        def test_a_cluster(quire_cluster):
            assert [bookie.name for bookie in quire_cluster.bookies] == ["bookie-1", "bookie-2", "bookie-3"]
        """,
    )
    result.assert_outcomes(passed=4)
    assert [line for line in NOTHING_LEFT if line not in result.outlines] == []
    (log, *_), clusters = (list(user.path.glob(f"runpytest-0/{name}[0-9]")) for name in ("quire_log", "quire_cluster"))
    assert list(log.iterdir())  # For a look at what went wrong, until pytest removes it.
    # Some megabytes for each test, which nobody can open any more. The name of each stays taken.
    assert [list(cluster.iterdir()) for cluster in clusters] == [[], []]


def test_async_tests(user: pytest.Pytester) -> None:
    result = run(
        user,
        """
        import asyncio
        import pytest

        async def write_and_read(place):
            async with place.connect() as client:
                async with client.open_writer("orders") as writer:
                    dlsn = await writer.append(b"paid")
                async with client.open_reader("orders", start=dlsn) as reader:
                    return (await anext(reader)).payload

        @pytest.mark.parametrize("name", ["quire_log", "quire_cluster"])
        def test_with_a_loop_of_their_own(name, request):
            assert asyncio.run(write_and_read(request.getfixturevalue(name))) == b"paid"

        @pytest.mark.asyncio
        async def test_with_pytest_asyncio(quire_log, quire_cluster):
            assert await write_and_read(quire_log) == await write_and_read(quire_cluster) == b"paid"

        @pytest.mark.asyncio
        @pytest.mark.quire_bookies(4)
        async def test_a_bookie_stops_while_a_reader_waits(quire_cluster):
            async with quire_cluster.connect() as client, client.open_writer("orders") as writer:
                async with client.open_reader("orders") as reader:
                    waiting = asyncio.create_task(anext(reader))
                    await asyncio.sleep(0)
                    quire_cluster.stop_bookie(3)
                    await writer.append(b"paid")
                    assert (await waiting).payload == b"paid"
        """,
    )
    result.assert_outcomes(passed=4)
    assert [line for line in NOTHING_LEFT if line not in result.outlines] == []


@pytest.mark.extended
def test_a_failing_test_leaves_nothing_either(user: pytest.Pytester) -> None:
    result = run(
        user,
        """
        import pytest

        KEPT = []

        def test_that_fails(quire_cluster, quire_log):
            with quire_cluster.connect_sync() as client, client.open_writer("orders") as writer:
                with quire_log.connect_sync():
                    assert writer.append(b"paid") == "somewhere else"

        def test_that_forgets_its_clients(quire_cluster):
            KEPT.append(quire_cluster.connect_sync())
            KEPT.append(KEPT[0].open_writer("orders"))
            KEPT[1].append(b"paid")

        @pytest.mark.quire_bookies(0)
        def test_that_asks_for_nonsense(quire_cluster):
            raise AssertionError("not reached")
        """,
    )
    result.assert_outcomes(passed=1, failed=1, errors=1)
    result.stdout.fnmatch_lines(["*InvalidArgument: a test's cluster cannot have 0 bookies"])
    assert [line for line in NOTHING_LEFT if line not in result.outlines] == []


@pytest.mark.extended
def test_workers_of_xdist_have_clusters_of_their_own(user: pytest.Pytester) -> None:
    result = run(
        user,
        """
        import pytest

        @pytest.mark.parametrize("number", range(6))
        def test_a_cluster(quire_cluster, number):
            with quire_cluster.connect_sync() as client:
                assert client.list_streams() == []
                client.create_stream("orders")
        """,
        "-n",
        "2",
    )
    result.assert_outcomes(passed=6)
