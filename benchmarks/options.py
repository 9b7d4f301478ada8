"""Options that several benchmarks have."""

from collections.abc import Sequence
from enum import StrEnum

import typer


class Peer(StrEnum):
    """Who else can be measured."""

    APACHE = "apache"


def parse_quorum(text: str) -> tuple[int, int, int]:
    """`3/3/2` as numbers."""
    parts = text.split("/")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise typer.BadParameter(f"{text!r} is not E/QW/QA, such as 3/3/2")
    return int(parts[0]), int(parts[1]), int(parts[2])


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE`, each."""
    pairs = [text.partition("=") for text in texts]
    if not all(name and equals for name, equals, _ in pairs):
        raise typer.BadParameter("a setting of the peer is NAME=VALUE")
    return {name: value for name, _, value in pairs}
