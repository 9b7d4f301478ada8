"""What the pages for operators show is run here, as a reader would: each command of each runbook."""

from pathlib import Path
from typing import Final

import pytest
from tests.e2e.document_runner import Reader
from tests.support.documents import ROOT, Block, read_blocks, steps
from tests.support.servers.ports import free_port

pytestmark = pytest.mark.extended

REPLACING: Final = "docs/operate/replace-a-bookie.md"
ON_A_CLUSTER: Final = [
    f"docs/operate/{name}.md" for name in ("capacity", "check", "rebalance", "full-disk", "monitoring", "runbooks")
]

# What these pages take for granted: a cluster that runs, and somebody who has written to it.
BEFORE: Final = [
    Block("before", 1, "console", {"terminal": "up"}, "$ quire up --proxy-port 0\n…\n… run in …\n…\n"),
    Block("before", 2, "console", {}, "$ seq 100 | quire write orders\n…\n"),
]


def commands(blocks: list[Block]) -> list[str]:
    found = [step.command for block in blocks if block.language == "console" for step in steps(block)]
    return [command for command in found if command not in ("", "^C")]


@pytest.mark.parametrize("document", [REPLACING, *ON_A_CLUSTER])
def test_every_block_is_one_that_a_test_runs(document: str) -> None:
    """Counted on another way than that of `read_blocks`: by the lines of ``` alone."""
    assert len(read_blocks(document)) * 2 == (ROOT / document).read_text().count("```")
    assert commands(read_blocks(document)), "a page for operators shows what to type"


def once(blocks: list[Block]) -> list[Block]:
    """Without commands that were run before: many runbooks begin with the same look."""
    seen: set[str] = set()
    found = []
    for block in blocks:
        fresh = [step for step in steps(block) if step.command not in seen]
        seen |= {step.command for step in fresh}
        text = "".join(f"$ {step.command}\n" + "".join(f"{line}\n" for line in step.shown) for step in fresh)
        if text:
            found.append(Block(block.document, block.line, block.language, block.attributes, text))
    return found


@pytest.mark.timeout(600)
def test_the_commands_for_a_running_cluster_do_what_is_shown(tmp_path: Path) -> None:
    shown = [block for document in ON_A_CLUSTER for block in read_blocks(document) if block.language == "console"]
    reader = Reader(tmp_path, stand_ins={}, not_run={})
    reader.follow([*BEFORE, *once(shown)])
    assert set(reader.commands) >= set(commands(shown))


@pytest.mark.timeout(600)
def test_a_bookie_is_replaced_as_the_page_says(tmp_path: Path) -> None:
    ports = {f"127.0.0.1:318{number}": f"127.0.0.1:{free_port()}" for number in range(1, 7)}
    Reader(tmp_path, stand_ins=ports, not_run={}).follow(read_blocks(REPLACING))
