"""The `quire` command: one module for each group of commands."""

from quire.cli.main import main

__all__ = ["main"]
