"""What depends on sessions, deadlines and killed processes holds on a machine that stands still now and then."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.extended, pytest.mark.timeout(600)]

TESTS = [
    "tests/contract/metadata/test_sessions.py",
    "tests/integration/bookie/test_kill.py",
    "tests/integration/proxy/test_failover.py",
    "tests/integration/stream/test_restarts.py",
]


def test_nothing_is_guessed_from_time() -> None:
    command = [sys.executable, "-m", "tests.soak.stalls", "--between", "1", "4"]
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "real and not extended", *TESTS]
    done = subprocess.run([*command, *tests], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=540)
    print(done.stdout)
    stalls = int(done.stdout.splitlines()[-1].split()[0])
    assert done.returncode == 0
    assert stalls > 5
