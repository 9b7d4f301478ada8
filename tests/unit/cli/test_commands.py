"""The tree of commands: the root tells of each what it says itself, and each shows how it is used."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from quire.cli.lazy import Deferred
from quire.cli.main import COMMANDS, app


def leaves(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """All commands that do something, by how they are called."""
    below: dict[str, Any] = getattr(command, "commands", {})
    if not below:
        yield path, command
    for name, each in below.items():
        yield from leaves(each, f"{path} {name}")


ALL = [found for deferred in COMMANDS for found in leaves(deferred.load(), f"quire {deferred.name}")]


@pytest.mark.parametrize("deferred", COMMANDS, ids=lambda deferred: deferred.name)
def test_the_root_says_of_a_command_what_it_says_itself(deferred: Deferred) -> None:
    said: str = deferred.load().help
    assert said.startswith(deferred.help.rstrip("."))


def test_the_root_has_all_of_them_once() -> None:
    root: Any = typer.main.get_command(app)
    assert list(root.commands) == [deferred.name for deferred in COMMANDS]
    assert len(set(root.commands)) == len(COMMANDS)


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_command_shows_how_it_is_used(path: str, command: Any) -> None:
    assert command.help, "it says what it does"
    assert f"{path} " in f"{command.epilog} ", "its example is one of itself"
    undescribed = [param.name for param in command.params if not param.help and param.name != "help"]
    assert undescribed == [], "each option says what it is for"


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_every_command_but_the_servers_takes_json(path: str, command: Any) -> None:
    options = {option for param in command.params for option in param.opts}
    assert "--json" in options or path.endswith(" run")


@pytest.mark.parametrize(("path", "command"), ALL, ids=[path for path, _ in ALL])
def test_no_command_takes_a_secret_as_a_word(path: str, command: Any) -> None:
    """Every user of the machine sees command lines: secrets come from files or the environment."""
    options = {option for param in command.params for option in param.opts}
    assert options.isdisjoint({"--token", "--password", "--secret"})


@pytest.mark.parametrize("words", [[], ["write"], ["stream"], ["stream", "show"]], ids=lambda words: " ".join(words))
def test_flags_are_shown_without_a_value(words: list[str]) -> None:
    shown = CliRunner().invoke(app, [*words, "--help"]).output
    assert "--help" in shown
    assert "bool" not in shown
