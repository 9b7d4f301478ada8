"""The gateway's OpenAPI description, held against a gateway over a log in a folder by schemathesis."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Final

import pytest

import quire
from quire.proxy.gateway import GatewaySettings, serve_gateway

pytestmark = pytest.mark.extended

ROOT: Final = Path(__file__).parents[3]
LONG: Final = bool(os.environ.get("QUIRE_TEST_LONG"))
EXAMPLES: Final = 300 if LONG else 5
SEED: Final = 7

# So that waiting reads and event streams come to an end while a program looks at their answers.
SETTINGS: Final = GatewaySettings(wait_s_max=0.05, tail_age_s=0.05)

# 501 is what a log without proxies answers to an idempotency key. Valid requests are refused only by the state of their
# stream: it is not there, has ended, or the position is not reached yet, or truncated. Appending is left out of that:
# schemathesis also sends idempotency keys that do not match the description's pattern, and takes them for valid.
CONFIGURATION: Final = """
[parameters]
"path.namespace" = "default"
[checks.not_a_server_error]
expected-statuses = ["2xx", "4xx", 501, 503, 504]
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 404, 409, 410, 416, 429, 501, 503, 504]
[[operations]]
include-name = "POST /v1/{namespace}/streams/{stream}/records"
checks.positive_data_acceptance.enabled = false
"""


@pytest.mark.timeout(3600 if LONG else 240)
async def test_whatever_is_sent_the_answer_is_as_described(tmp_path: Path) -> None:
    """Goal: no request makes the gateway fail, and every answer has the status, headers and form that are described.

    Method: requests from the description's examples and limits, random ones, and sequences along its links; half of
    them wrong on purpose. QUIRE_TEST_LONG tries many more.
    """
    configuration = tmp_path / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    async with (
        quire.connect(f"file:{tmp_path / 'log'}") as client,
        serve_gateway({"default": client}, SETTINGS) as served,
    ):
        command = [
            *("--config-file", str(configuration), "run", f"{served.url}/v1/openapi.json", "--url", served.url),
            *("--seed", str(SEED), "--max-examples", str(EXAMPLES), "--no-color", "--no-shrink", "--workers", "1"),
        ]
        program = await asyncio.create_subprocess_exec(
            *(str(Path(sys.executable).parent / "schemathesis"), *command),
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SCHEMATHESIS_HOOKS": "tests.integration.proxy.gateway_hooks",
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await program.communicate()
        assert program.returncode == 0, output.decode(errors="replace")
        statistics = served.statistics()
        answers = {int(status): count for status, count in statistics["answers"].items()}
        assert sum(answers.values()) > 200
        assert {200, 201, 204, 400, 404, 405} <= set(answers), "it did not get far"
        assert not [status for status in answers if status >= 500 and status not in (501, 503, 504)]
        assert statistics["under_way"] == {"calls": 0, "fetches": 0, "tails": 0}
