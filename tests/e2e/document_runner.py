"""Do what a document says, from its first block to its last, as a reader would who follows it."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.e2e.terminal import Terminal
from tests.support.documents import ANY_LINES, ANYTHING, Block, Step, steps

_STEP_S: Final = 180.0  # A program on Spark starts a JVM first.
_MAIN: Final = ""


class Reader:
    """Somebody who reads a document at a computer of their own: a folder, terminals, and nothing else.

    `stand_ins` are the words of the document for which something else is used, such as the address of a server.
    """

    def __init__(self, folder: Path, *, stand_ins: Mapping[str, str], not_run: Mapping[str, str]) -> None:
        self._folder, self._stand_ins, self._not_run = folder / "work", stand_ins, not_run
        self._folder.mkdir()
        self._environment = _environment(folder)
        self._terminals: dict[str, Terminal] = {}
        self._left_off: set[str] = set()  # Those where `…` was the last that was shown: more may have come since.
        self.commands: list[str] = []
        """As the document shows them, those that were run."""

    def follow(self, blocks: Sequence[Block]) -> None:
        """Raises `AssertionError` where the document and what happens are not the same."""
        with ExitStack() as stack:
            for block in blocks:
                try:
                    self._try(block, stack)
                except AssertionError as error:
                    raise AssertionError(f"{block.place}: {error}") from error

    def _try(self, block: Block, stack: ExitStack) -> None:
        if block.file is not None:
            (self._folder / block.file).write_text(self._replaced(block.text))
        if block.language != "console":
            return
        name = block.attributes.get("terminal", _MAIN)
        if name not in self._terminals:
            self._terminals[name] = Terminal(self._folder, self._environment)
            stack.callback(self._terminals[name].close)
        todo = [step for step in steps(block) if step.command not in self._not_run]
        for step in todo:
            code = int(block.attributes.get("exit", "0")) if step is todo[-1] else 0
            if name == _MAIN:
                self._run(self._terminals[name], step, code)
            else:
                self._watch(name, self._terminals[name], step)

    def _run(self, terminal: Terminal, step: Step, code: int) -> None:
        """A command that is over before the reader goes on."""
        assert step.command, "output without a command needs a terminal=…"
        self.commands.append(step.command)
        terminal.type(self._replaced(step.command))
        done = terminal.wait_end(within_s=_STEP_S)
        assert done.code == code, f"$ {step.command}\nends with exit code {done.code}:\n{done.output}"
        assert "Traceback" not in done.output, done.output
        if step.shown:
            output = done.output if done.output.endswith("\n") else f"{done.output}\n"
            shown = "\n".join(step.shown)
            assert re.fullmatch(self._replaced_pattern(step), output), (
                f"$ {step.command}\n--- the document shows:\n{shown}\n--- but it is:\n{output}"
            )

    def _watch(self, name: str, terminal: Terminal, step: Step) -> None:
        """A command that goes on: as far as the document shows it."""
        if step.command == "^C":
            terminal.interrupt()
        elif step.command:
            self.commands.append(step.command)
            terminal.type(self._replaced(step.command))
        pattern = self._replaced_pattern(step)
        terminal.wait_shown(ANY_LINES + pattern if name in self._left_off else pattern, within_s=_STEP_S)
        if step.command == "^C":
            done = terminal.wait_end(within_s=_STEP_S)
            assert done.code == 0, f"after Ctrl-C the exit code is {done.code}:\n{done.output}"
        if step.shown[-1:] == (ANYTHING,):
            self._left_off.add(name)
        else:
            self._left_off.discard(name)

    def _replaced(self, text: str) -> str:
        """In one pass: a port that stands in for another may look like a third one's."""
        words = "|".join(map(re.escape, self._stand_ins))
        return re.sub(words, lambda found: self._stand_ins[found[0]], text) if words else text

    def _replaced_pattern(self, step: Step) -> str:
        return Step(step.command, tuple(map(self._replaced, step.shown))).pattern


def _environment(folder: Path) -> dict[str, str]:
    """That of somebody who has just installed Quire: no settings, and a home where nothing runs."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {
        "PATH": tools,
        "HOME": str(folder),
        "XDG_STATE_HOME": str(folder / "state"),
        "LANG": "C.UTF-8",
        "TERM": "xterm",
    }
