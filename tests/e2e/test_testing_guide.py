"""The guide to testing: each of its programs is a test file of a user, and passes."""

import pytest
from tests.support.documents import ROOT, blocks

from quire.testing import EmbeddedLog, LocalCluster

GUIDE = "docs/guide/testing.md"
DEADLINE_S = 100.0


@pytest.mark.extended
def test_the_tests_of_the_guide_pass(pytester: pytest.Pytester) -> None:
    shown = blocks(GUIDE, "python")
    assert len(shown) == 4
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function")  # Else pytest-asyncio warns.
    pytester.makepyfile(**{f"test_{number}": block for number, block in enumerate(shown)})
    result = pytester.runpytest_subprocess("-W", "error", "--strict-markers", timeout=DEADLINE_S)
    result.assert_outcomes(passed=sum(block.count("def test_") for block in shown))


def test_every_name_of_the_handles_is_in_the_guide() -> None:
    text = (ROOT / GUIDE).read_text()
    public = {name for handle in (EmbeddedLog, LocalCluster) for name in vars(handle) if not name.startswith("_")}
    assert {name for name in public if f"`.{name}" not in text} == set()
