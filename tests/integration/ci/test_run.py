"""`.ci/run` in a small project: what runs twice, what is listed as flaky, and what fails the run."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = """\
.PHONY: test test-all interop test-again
PYTEST = {python} -m pytest -p tests.support.tiers -p no:cacheprovider -o addopts= --rootdir . $(OPTIONS)
test:
	$(PYTEST) -m "not extended"
test-all:
	$(PYTEST) -m extended
interop:
	$(PYTEST) interop
test-again:
	$(PYTEST) @$(TESTS)
"""
PASSES = "def test_passes(): pass\n"
EXTENDED = "import pytest\n@pytest.mark.extended\ndef test_long_form(): pass\n"
FAILS_ONCE = """\
import pytest
from pathlib import Path

@pytest.mark.parametrize("name", ["a b", "c"])
def test_bad_moment(name):
    seen = Path(__file__).with_suffix(".seen")
    if name == "a b" and not seen.exists():
        seen.touch()
        raise TimeoutError("the machine was busy")
"""
FAILS = "def test_broken(): assert False\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text(MAKEFILE.format(python=sys.executable))
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    for file, text in {
        "tests/unit/test_unit.py": PASSES,
        "tests/integration/test_integration.py": PASSES,
        "tests/integration/test_extended.py": EXTENDED,
        "interop/test_interop.py": PASSES,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def run(project: Path) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MAKE"))}
    # Not as a test folder's parent: `tests` of the small project has no __init__.py, ours is found as a package.
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [project / ".ci" / "run"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


def last_lines(output: str, first: str) -> str:
    return output[output.rindex(first) :]


def test_all_pass_and_the_slowest_are_named(project: Path) -> None:
    for file in "tests/unit/test_slow.py", "interop/test_slow_interop.py":
        (project / file).write_text("def test_slow(): sum(range(3_000_000))\n")

    code, output = run(project)

    assert code == 0, output
    test, interop = output[output.rindex("make test passed") :].split("make interop passed")
    assert "call     tests/unit/test_slow.py::test_slow\n" in test
    assert "3 passed, 1 deselected in" in test  # The runner's own words.
    assert "make test-all passed" in test
    assert "call     interop/test_slow_interop.py::test_slow\n" in interop
    assert interop.endswith("flaky: 0\n")


def test_a_test_of_real_processes_that_fails_once_runs_again_and_is_listed_as_flaky(project: Path) -> None:
    (project / "tests/integration/test_moment.py").write_text(FAILS_ONCE)

    code, output = run(project)

    assert code == 0, output
    results = last_lines(output, "make test failed")
    assert "make interop passed" in results  # One bad moment does not keep the rest from running.
    assert "1 passed in" in last_lines(results, "make test-again passed")  # Only what failed.
    assert results.endswith("flaky: 1\n  tests/integration/test_moment.py::test_bad_moment[a b]\n")


def test_a_test_of_real_processes_that_fails_twice_fails_the_run(project: Path) -> None:
    (project / "tests/integration/test_moment.py").write_text(FAILS_ONCE)
    (project / "tests/integration/test_broken.py").write_text(FAILS)

    code, output = run(project)

    assert code == 1, output
    results = last_lines(output, "make test failed")
    assert "1 failed, 1 passed in" in last_lines(results, "make test-again failed")
    assert "flaky: 1\n  tests/integration/test_moment.py::test_bad_moment[a b]\n" in results
    assert results.endswith("FAILED twice, the second time alone on the machine\n")


@pytest.mark.parametrize("file", ["tests/unit/test_broken.py", "tests/contract/test_memory.py"])
def test_a_hermetic_test_that_fails_ends_the_run_at_once(project: Path, file: str) -> None:
    (project / "tests/integration/test_moment.py").write_text(FAILS_ONCE)
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).write_text(FAILS)

    code, output = run(project)

    assert code == 1, output
    results = last_lines(output, "make test failed")
    assert "make test-all" not in output
    assert "make test-again" not in output
    assert results.endswith("FAILED in make test: not only in tests that may run twice\n")


def test_a_target_that_fails_before_any_test_ends_the_run_at_once(project: Path) -> None:
    makefile = project / "Makefile"
    makefile.write_text(makefile.read_text().replace("test:\n", "test:\n\tfalse\n", 1))

    code, output = run(project)

    assert code == 1, output
    assert "make test-all" not in output
    assert "make test-again" not in output
