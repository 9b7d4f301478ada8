"""The blocks of a document: its programs, its transcripts and its drawings, and where they are.

```python              a program. With a comment such as `# first.py` as its first line it is kept under that name,
                       for a command below it to run; otherwise it defines functions for a test to call.
```console             a transcript. Lines that begin with `$ ` are typed into a shell, those that begin with `> `
                       belong to the line above; the others are what a reader sees below a command. `…` stands for
                       anything, and for any number of lines if it is alone on one. Nothing shown: nothing checked.
```console exit=1      the same, where the last command fails with this exit code.
```console terminal=x  the same at a second terminal, whose commands go on while the document does. Lines without a
                       command are waited for, and `^C` is typed.
```text                nothing that anybody runs.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
LANGUAGES: Final = ("python", "console", "text")
ATTRIBUTES: Final = ("terminal", "exit")

ANYTHING: Final = "…"
ANY_LINES: Final = r"(?:[^\n]*\n)*?"

_FENCE: Final = re.compile(r"```(.*)")
_FILE: Final = re.compile(r"# (\w+\.py)\n")


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    document: str
    line: int
    language: str
    attributes: Mapping[str, str]
    text: str

    @property
    def place(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def file(self) -> str | None:
        """The name that a program tells in its first line."""
        match = _FILE.match(self.text) if self.language == "python" else None
        return match[1] if match else None


def read_blocks(document: str) -> list[Block]:
    """All blocks of a document, in order. Raises `ValueError` for what would escape the tests."""
    found: list[Block] = []
    lines = (ROOT / document).read_text().splitlines()
    opened: tuple[int, str] | None = None
    body: list[str] = []
    for number, line in enumerate(lines, start=1):
        fence = _FENCE.fullmatch(line)
        if fence is None:
            if opened is not None:
                body.append(line)
            elif line.lstrip().startswith("```") or (line.startswith("    ") and not lines[number - 2].strip()):
                raise ValueError(f"{document}:{number}: commands and programs stand between lines of ``` at the margin")
        elif opened is None:
            opened, body = (number, fence[1]), []
        elif fence[1]:
            raise ValueError(f"{document}:{number}: a block begins inside that of line {opened[0]}")
        else:
            found.append(_block(document, *opened, "".join(f"{line}\n" for line in body)))
            opened = None
    if opened is not None:
        raise ValueError(f"{document}:{opened[0]}: this block has no end")
    return found


def blocks(document: str, language: str) -> list[str]:
    """The text of all blocks in one language."""
    return [block.text for block in read_blocks(document) if block.language == language]


def _block(document: str, line: int, info: str, text: str) -> Block:
    language, *words = info.split()
    attributes = dict(word.split("=", 1) for word in words)
    if language not in LANGUAGES or not attributes.keys() <= set(ATTRIBUTES):
        raise ValueError(f"{document}:{line}: nobody knows how to try ```{info}")
    return Block(document, line, language, attributes, text)


# --- Transcripts


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a transcript, `^C`, or nothing at all; and what is shown below it."""

    command: str
    shown: tuple[str, ...]

    @property
    def pattern(self) -> str:
        """A regular expression for what is shown."""
        return "".join(map(_line_pattern, self.shown))


def steps(block: Block) -> list[Step]:
    """A transcript, command by command. Lines before the first one are a step without a command."""
    found: list[tuple[str, list[str]]] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line == "^C":
            found.append((line, []))
        elif line.startswith("> ") and found and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
        else:
            if not found:
                found.append(("", []))
            found[-1][1].append(line)
    return [Step(command, tuple(shown)) for command, shown in found]


def _line_pattern(line: str) -> str:
    if line == ANYTHING:
        return ANY_LINES
    return "[^\n]*?".join(map(re.escape, line.rstrip().split(ANYTHING))) + r"[ \t]*\n"
