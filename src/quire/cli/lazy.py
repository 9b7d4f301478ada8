"""Commands that are loaded when they are used: whoever asks for the version does not wait for a benchmark to load.

The root lists each command with a line of help. Only the one that is called imports its module, whose `app` has either
a group of that name or the command. That the root says of each the beginning of what it says itself is for a test.
"""

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from quire.values import dataclass


@dataclass(frozen=True, slots=True)
class Deferred:
    """A command, or a group of them, that is in a module of its own."""

    name: str
    module: str
    help: str
    panel: str
    """Where the root's help lists it."""
    is_group: bool = True

    def load(self) -> Any:
        """The command itself."""
        app: typer.Typer = import_module(self.module).app
        root = typer.Typer(rich_markup_mode="rich")
        root.add_typer(app, name=self.name if self.is_group else None)
        group: Any = typer.main.get_group(root)
        command = group.commands[self.name]
        _tidy_help(command)
        return command


def _tidy_help(command: Any) -> None:
    """Several examples are a list in the help: each is there to be copied. A flag takes no value, and names none."""
    if command.epilog:
        command.epilog = command.epilog.replace("Examples:  ", "Examples:\n\n").replace("  ·  ", "\n\n")
    listed = command.get_params
    command.get_params = lambda context: _plain_flags(listed(context))
    for below in getattr(command, "commands", {}).values():
        _tidy_help(below)


def _plain_flags(options: list[Any]) -> list[Any]:
    """Typer would show `<bool>` beside each."""
    for option in options:
        if getattr(option, "is_flag", False) and option.metavar is None:
            option.metavar = ""
    return options


class _Stand(TyperCommand):
    """Stands for a command until it is called."""

    def __init__(self, deferred: Deferred) -> None:
        super().__init__(deferred.name, help=deferred.help, rich_help_panel=deferred.panel, rich_markup_mode="rich")
        self._deferred = deferred

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return self._deferred.load().make_context(info_name, args, parent, **extra)


def group_with(*commands: Deferred) -> type[TyperGroup]:
    """The kind of group that has these commands, and those that are registered as usual."""

    class Group(TyperGroup):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            for each in commands:
                self.add_command(_Stand(each))

        def get_params(self, ctx: Any) -> list[Any]:
            return _plain_flags(super().get_params(ctx))

    return Group
